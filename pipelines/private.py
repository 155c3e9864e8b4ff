"""Private things: secrets in texts and settings, and the files and folders of a deployment.

A secret is given by reference, `env:NAME` or `file:PATH`: what is stored, shown and logged is the reference, and its value is
read where it is used.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.errors import TrideltaError

SPARK_SETTINGS = frozenset(
    {
        "spark.cores.max",
        "spark.default.parallelism",
        "spark.driver.memory",
        "spark.dynamicAllocation.enabled",
        "spark.dynamicAllocation.maxExecutors",
        "spark.dynamicAllocation.minExecutors",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.memory.fraction",
        "spark.sql.adaptive.enabled",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.files.minPartitionNum",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB",
        "spark.task.cpus",
    }
)
"""Sizes, counts and switches: none of them names a class, a file, a host or an option of a process."""


HIDDEN = "***"
FILE_MODE, FOLDER_MODE = 0o600, 0o700

# None of these may go over a text more than once: an error can quote megabytes of a record.
# `word:word@`: up to the last `@`, for a password may hold one that was not encoded. A port is not followed by one.
_WORD = re.compile(r"\S++")
_LOGIN = re.compile(r":(?!//)")
# After the `?` of an address there may be a password under any name, encoded or not.
_QUERY = re.compile(r"(?<=\?)[^\s'\"]+")
_NAME = re.compile(r"(?<![\w.%-])([\w.%-]++)[\"']?\s*+[=:]\s*+")
_TELLING = re.compile(r"(?i)passw(?:or)?d|pwd|secret|token|(?:api|access|account|private)[_-]?key")
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s,;&]+")
_SECRET_NAME = re.compile(
    r"(?i:password|passwd|passphrase|pwd|secret|token|(api|access|account|secret|private)[._-]?key)([._-]|$)"
    # Kafka's: a login with its password, and a private key as text.
    r"|(^|[.])(?:jaas[.]config|keystore[.]key)$"
)
_SECRET_VARIABLE = re.compile(
    r"(?i)passw(?:or)?d|passphrase|pwd|secret(?!ar)|token(?!i[sz])|jaas|(?:api|access|account|private)_?key"
    # `DB_PASS` and `SSHPASS`, but for words that end so themselves.
    r"|(?<![a-z])(?!(?:by|com|encom|over|sur|tres|under)pass)[a-z]*pass(?![a-z])"
)
# Its value says where the secret is.
_PLACE_NAME = re.compile(r"(?i)[._-](file|path|dir|location|provider|class|type|name|enabled)$")
_REFERENCE = re.compile(r"(env|file):(.+)", re.DOTALL)
_LONGEST = 4_000_000
LOGIN = re.compile(
    r"\s*(?:org\.apache\.kafka\.common\.security\.(?:plain\.Plain|scram\.Scram|oauthbearer\.OAuthBearer)LoginModule"
    r"|com\.sun\.security\.auth\.module\.Krb5LoginModule)[ \t\r\n]"
)
"""The beginning of a login (JAAS; Kafka takes one alone) by a documented module. One by JNDI runs what its server sends."""


class SecretError(TrideltaError):
    """A secret is not there where its reference points, or was given in place of a reference."""

    def __init__(self, name: str, problem: str) -> None:
        self.name, self.problem = name, problem
        hint = "write a reference, env:NAME or file:PATH, and keep the secret there, where the worker runs"
        super().__init__(f"setting {name}: {problem}", hint=hint)


def masked(text: str) -> str:
    """Return a text without the secrets in it: of addresses the passwords and what follows `?`, and values of telling names."""
    return "".join(_without_values(_QUERY.sub(HIDDEN, _WORD.sub(_without_password, text))))


def _without_password(word: re.Match[str]) -> str:
    before, _, behind = word[0].rpartition("@")
    begun = _LOGIN.search(before) if before else None
    return f"{before[: begun.start()]}:{HIDDEN}@{behind}" if begun else word[0]


def _without_values(text: str) -> Iterator[str]:
    """Yield a text without the values of telling names, in parts."""
    done = 0
    for named in _NAME.finditer(text):
        if named.start() < done or not _TELLING.search(named[1]):
            continue
        if value := _VALUE.match(text, named.end()):
            yield text[done : named.end()] + HIDDEN
            done = value.end()
    yield text[done:]


def masked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Mask settings for display and logs: of Spark's keep only those that the forms take, and references."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "spark" and isinstance(value, Mapping):
            result[name] = {
                key: setting if key in SPARK_SETTINGS or is_reference(key, setting) else HIDDEN
                for key, setting in value.items()
            }
        else:
            result[name] = masked(value) if isinstance(value, str) else value
    return result


def is_secret(name: str) -> bool:
    """Return whether a setting of this name is a secret itself."""
    return bool(_SECRET_NAME.search(name)) and not _PLACE_NAME.search(name)


def is_secret_variable(name: str) -> bool:
    """Return whether a variable of the environment is a secret by its name. One too many is refused and can be renamed."""
    return bool(_SECRET_VARIABLE.search(name)) and not _PLACE_NAME.search(name)


def is_reference(name: str, value: object) -> bool:
    """Return whether the value of a secret says where the secret is."""
    return is_secret(name) and isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def refuse_secrets(settings: Mapping[str, Any]) -> None:
    """Refuse secrets in place of references: what is deployed is stored."""
    for name, value in settings.items():
        if is_secret(name) and not is_reference(name, value):
            raise SecretError(name, "a secret is not stored")


def resolved(name: str, value: str) -> str:
    """Resolve a reference to a secret.

    Args:
        name: the setting's name, for the error.
        value: `env:NAME` or `file:PATH`; any other text is returned unchanged.

    Raises:
        SecretError: if the variable is missing, or the file cannot be read, is no ordinary one, or larger than 4 MB.
    """
    match = _REFERENCE.fullmatch(value)
    if match is None:
        return value
    kind, where = match.groups()
    if kind == "env":
        if where not in os.environ:
            raise SecretError(name, f"the environment has no {where}")
        return os.environ[where]
    try:
        with open(where, "rb", opener=ordinary_opener) as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ValueError(f"it is larger than {_LONGEST:,} bytes")
        return content.decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise SecretError(name, f"{where} cannot be read: {error}") from None


def spark_values(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return Spark settings as Spark takes them: texts, with each secret in place of its reference."""
    return {name: resolved(name, str(value)) if is_secret(name) else str(value) for name, value in settings.items()}


def private_folder(folder: Path) -> Path:
    """Return a folder of this user's alone. One that is there becomes so, where it is this user's."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    _only_ours(folder, FOLDER_MODE)
    return folder


def private_opener(path: str, flags: int) -> int:
    """Open a file of this user's alone, for `open(opener=)`."""
    descriptor = os.open(path, flags, FILE_MODE)
    _only_ours(descriptor, FILE_MODE)
    return descriptor


def ordinary_opener(path: str, flags: int) -> int:
    """Open an ordinary file, for `open(opener=)`. A pipe is not waited for."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no ordinary file")
    return descriptor


def private_file(file: Path) -> None:
    """Make a file of this user's alone, empty if it is not there."""
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        _only_ours(file, FILE_MODE)


def _only_ours(there: Path | int, mode: int) -> None:
    """Take from others what they may, where this user may say so."""
    seen = os.stat(there)  # noqa: PTH116 (an open file has no path)
    if seen.st_uid == os.geteuid() and stat.S_IMODE(seen.st_mode) & 0o077:
        os.chmod(there, mode)  # noqa: PTH101
