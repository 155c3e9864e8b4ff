"""Secrets are masked by one function, stored by reference, and files of a deployment are their user's alone."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from pipelines import Lake
from pipelines.nimbus.errors import RegistryError
from pipelines.nimbus.registry.store import Store
from pipelines.places.location import Location, LocationError
from pipelines.places.store import StoreError
from pipelines.private import (
    SecretError,
    is_secret,
    is_secret_variable,
    masked,
    masked_settings,
    private_folder,
    private_opener,
    refuse_secrets,
    resolved,
    spark_values,
)
from pipelines.sources import JsonFiles
from pipelines.surroundings import RemoteLocationError

SECRET = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://me:{SECRET}@host/db",
        f"postgresql:/me:{SECRET}@host/db",
        f"postgresql//me:{SECRET}@host/db",
        f"postgres ql://me:{SECRET}@host/db",
        f"me:{SECRET}@host",
        f"postgresql://me:{SECRET}/x@host:port/db",
        f"postgresql://me:x@{SECRET}@host/db",
        f"postgresql://host/db?password={SECRET}",
        f"postgresql://host/db?pass%77ord={SECRET}",
        f"postgresql://host/db?sslmode=require&sslpassword={SECRET}",
        f"sqlite:///file.db?{SECRET}",
        f"host=x user=y password={SECRET} port=1",
        f"password='{SECRET} and more'",
        f'{{"api_key": "{SECRET}"}}',
        f"spark.hadoop.fs.s3a.secret.key={SECRET}",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert SECRET not in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////home/me/registry.db",
        "postgresql://me@host:5432/db",
        "http://localhost:3000/runs",
        "batch 4: 12 rows",
        "",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "text",
    ["a" * 10**6, "token" * 200_000, ":" * 10**6, "a:b@" * 250_000, "a=" * 500_000, "token='" * 100_001, "a " * 500_000,
     "a" + " " * 10**6, "?" * 10**6, "token\n" * 100_000],
    ids=lambda text: text[:7],
)  # fmt: skip
def test_a_long_text_is_masked_at_once(text: str) -> None:
    """Time is of this process alone: others may be busy."""
    began = time.process_time()
    masked(text)
    assert time.process_time() - began < 60, "tenths; hours where each part looks through the rest"


def test_a_secret_in_a_long_text_is_masked() -> None:
    long = "x" * 10_000
    for text in (f"{long}token{long}={SECRET}", f"a:{long}{SECRET}@h", f"a=b, {long}: {long}, pwd: {SECRET}"):
        assert SECRET not in masked(text)


@pytest.mark.parametrize(
    "url", [f"postgresql:/me:{SECRET}@h/d", f"mysql://me:{SECRET}@h/d", f"mysql://h/d?password={SECRET}"]
)
def test_a_refused_registry_is_told_without_its_password(url: str) -> None:
    with pytest.raises(RegistryError) as refused:
        Store.migrated(url)
    seen: BaseException | None = refused.value
    while seen is not None:
        assert SECRET not in str(seen) + repr(vars(seen))
        seen = seen.__cause__


@pytest.mark.parametrize(
    "url",
    [
        f"s3://KEY:{SECRET}@bucket/lake",
        f"s3a://KEY:{SECRET}/x@bucket/lake",
        f"s3://bucket/lake?token={SECRET}",
        f"hdfs://me:{SECRET}@name:8020/lake",
        f"abfss://c@a.dfs.core.windows.net/lake?sig={SECRET}",
        f"https://me:{SECRET}@host/lake",
    ],
)
def test_a_refused_place_is_told_without_its_secret(url: str) -> None:
    for named in (lambda: Lake(url), lambda: Location.of(url), lambda: JsonFiles(url, "k string")):
        with pytest.raises((LocationError, RemoteLocationError)) as refused:
            named()
        assert SECRET not in str(refused.value) + repr(vars(refused.value))


def test_a_store_that_fails_is_told_without_secrets() -> None:
    said = f"error sending request for http://me:{SECRET}@host/bucket?X-Amz-Signature={SECRET}"
    refused = StoreError(f"s3://KEY:{SECRET}@bucket/lake", said, hint="see whether it is up")
    assert SECRET not in str(refused) + repr(vars(refused))


def test_of_spark_settings_only_harmless_values_are_shown() -> None:
    given = {
        "owner": "me",
        "spark": {
            "spark.executor.memory": "4g",
            "spark.hadoop.x": SECRET,
            "spark.authenticate.secret": "env:SPARK_SECRET",
        },
    }
    assert masked_settings(given) == {
        "owner": "me",
        "spark": {
            "spark.executor.memory": "4g",
            "spark.hadoop.x": "***",
            "spark.authenticate.secret": "env:SPARK_SECRET",
        },
    }


def test_secrets_are_stored_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv("THE_SECRET", "from the environment")
    given = {
        "spark.authenticate.secret": "env:THE_SECRET",
        "spark.hadoop.fs.s3a.secret.key": f"file:{tmp_path}/key",
        "spark.eventLog.dir": "file:/logs",
        "spark.executor.cores": 2,
    }
    refuse_secrets(given)
    assert spark_values(given) == {
        "spark.authenticate.secret": "from the environment",
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.eventLog.dir": "file:/logs",
        "spark.executor.cores": "2",
    }
    with pytest.raises(SecretError, match="not stored") as refused:
        refuse_secrets({"spark.authenticate.secret": SECRET})
    assert SECRET not in str(refused.value)
    for missing in ("env:NO_SUCH_SECRET", f"file:{tmp_path}/none", "file:\0"):
        with pytest.raises(SecretError):
            resolved("spark.authenticate.secret", missing)


def test_a_secret_is_a_small_ordinary_file(tmp_path: Path) -> None:
    """A pipe would be waited for, a device has no end. A bundle of all authorities has some 220 KB."""
    os.mkfifo(tmp_path / "pipe")
    for name, size in (("large", 4_000_001), ("most", 4_000_000)):
        (tmp_path / name).write_text("x" * size)
    for path, said in ((tmp_path / "pipe", "no ordinary file"), (tmp_path / "large", "larger than 4,000,000 bytes")):
        with pytest.raises(SecretError, match=said):
            resolved("spark.authenticate.secret", f"file:{path}")
    with pytest.raises(SecretError, match="no ordinary file"):
        resolved("spark.authenticate.secret", "file:/dev/null")
    assert len(resolved("spark.authenticate.secret", f"file:{tmp_path}/most")) == 4_000_000


def test_names_of_secrets() -> None:
    for name in (
        "spark.ssl.keyPassword",
        "spark.ssl.trustStorePassword",
        "spark.my.dbpassword",
        "spark.my.githubtoken.x",
        "spark.my.secretkey",
        "spark.authenticate.secret",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net",
        "spark.hadoop.fs.s3a.session.token",
        "spark.ssl.ui.password",
        "kafka.sasl.jaas.config",
        "kafka.ssl.keystore.key",
    ):
        assert is_secret(name), name
    for name in (
        "spark.authenticate.secret.file",
        "spark.hadoop.fs.s3a.aws.credentials.provider",
        "spark.kubernetes.authenticate.oauthTokenFile",
        "spark.sql.shuffle.partitions",
        "spark.authenticate",
        "spark.tokens",
        "spark.secretary",
    ):
        assert not is_secret(name), name


SECRETS = """
DBPASSWORD KAFKAPASSWORD GITHUBTOKEN CLIENTSECRET SECRETKEY DB_PASS SSHPASS PASS DB_PASS_2 DBPASS2 SASL_JAAS_CONFIG KAFKA_JAAS
JAASCONFIG PASSPHRASE API_TOKENS PASSWORD2 db_password dbPassword S3_ACCESS_KEY ACCESSKEY TOKEN_URL
"""
NO_SECRETS = """
COMPASS COMPASS_URL PASSENGERS BYPASS OVERPASS_URL PASSES PASSED PASSIVE PASSAU_FOLDER ENCOMPASS TOKENIZER TOKENISER_MODEL
SECRETARY DB_PASSWORD_FILE KAFKA_JAAS_PATH SECRETS_DIR KEY KEYS FLOW_DATA DATABASE BROKER MONKEY
"""


def test_names_of_variables_that_are_secrets() -> None:
    assert [name for name in SECRETS.split() if not is_secret_variable(name)] == []
    assert [name for name in NO_SECRETS.split() if is_secret_variable(name)] == []


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_their_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = private_folder(tmp_path / "logs")
        with open(folder / "worker.out", "ab", opener=private_opener) as out:
            out.write(b"x")
        assert (mode(folder), mode(folder / "worker.out")) == (0o700, 0o600)
        folder.chmod(0o755)
        (folder / "worker.out").chmod(0o644)
        private_folder(folder)
        with open(folder / "worker.out", "ab", opener=private_opener):
            pass
        assert (mode(folder), mode(folder / "worker.out")) == (0o700, 0o600)
    finally:
        os.umask(before)


def test_the_registry_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        file = tmp_path / "nimbus" / "registry.db"
        store = Store.migrated(f"sqlite:///{file}")
        with store.read():
            assert {mode(one) for one in file.parent.iterdir()} == {0o600}
        store.close()
        assert mode(file.parent) == 0o700
        # Of an earlier release.
        file.chmod(0o644)
        Store(f"sqlite:///{file}").close()
        assert mode(file) == 0o600
    finally:
        os.umask(before)
