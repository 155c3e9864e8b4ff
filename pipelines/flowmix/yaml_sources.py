"""The sources of a flow as YAML: `source: {json_files: {path: ..., schema: ...}}`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator

from pipelines.errors import DefinitionError, TrideltaError
from pipelines.flowmix.yaml_parts import ONE, Form, OneOf
from pipelines.places.location import scheme_of
from pipelines.private import LOGIN, SecretError, is_secret, is_secret_variable, refuse_secrets

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"(?i)(?<!\w)(?>\w*?(?:password|secret|token))\w*+\s*+=\s*+[\"']?[^\"'\s;]")
"""A secret of a Kafka login (JAAS), as it stands there. It goes over each word once."""
_OF_OPERATOR = re.compile(
    r"(?:TRIDELTA|DAGSTER|AWS)_.*|PG(?:HOST|HOSTADDR|PORT|USER|PASSWORD|PASSFILE|DATABASE|SERVICE|SSL.+)"
)
"""Variables of the deployment, its stores and databases."""
_CERTIFICATES = ("kafka.ssl.truststore.certificates", "kafka.ssl.keystore.certificate.chain")
_OF_CLASSES = re.compile(r"(?i)\.(?:class|classes|reporters|providers|strategy|cmd)$")
"""Options of Kafka's consumer whose value is the name of a class, or of a program (`kinit`), which it then runs."""
_LONG = 6

Positive = Annotated[int, Field(ge=1)]


class TextForm(Form):
    """A folder of text files, an event a line."""

    path: str
    field: str = "line"
    max_files_per_batch: Positive | None = None
    max_bytes_per_batch: Positive | None = None
    options: dict[str, str | int | bool] = {}


class TableForm(Form):
    """A Delta table."""

    path: str
    schema_: str = Field(alias="schema")
    max_files_per_batch: Positive | None = None
    max_bytes_per_batch: Positive | None = None


class FilesForm(TableForm):
    """A folder of files. A relative path is one beside the flow's file; `${NAME}` is a variable of the environment."""

    options: dict[str, str | int | bool] = {}


class FeedForm(TableForm):
    """The changes of a Delta table."""

    starting_version: Annotated[int, Field(ge=0)] | None = None


class KafkaForm(Form):
    """Topics of Kafka. An option that is a secret is a reference, `env:NAME` or `file:PATH`, or holds a `${NAME}`."""

    servers: str | list[str]
    topics: str | list[str]
    schema_: str | None = Field(None, alias="schema")
    value_format: str = "json"
    starting: str = "earliest"
    max_records_per_batch: Positive | None = None
    with_fields: list[str] = []
    options: dict[str, str] = {}

    @field_validator("options")
    @classmethod
    def _no_secrets(cls, options: dict[str, str]) -> dict[str, str]:
        try:
            refuse_secrets({name: value for name, value in options.items() if not _in_variables(value)})
        except SecretError as error:
            raise ValueError(f"{error.name}: {error.problem}; {error.hint}") from None
        return options

    @field_validator("options")
    @classmethod
    def _no_classes(cls, options: dict[str, str]) -> dict[str, str]:
        for name, value in options.items():
            if _OF_CLASSES.search(name):
                raise ValueError(f"{name} names a class to run, or a program, which a flow's file does not choose")
            if name.lower().endswith("sasl.jaas.config") and not _is_reference(value) and not LOGIN.match(value):
                raise ValueError(
                    f"{name}: it begins with Kafka's PlainLoginModule, Scram..., OAuthBearer... or Krb5LoginModule"
                )
        return options


def _is_reference(value: str) -> bool:
    """Return whether somebody else wrote the value: it is a reference or one variable."""
    return value.startswith(("env:", "file:")) or _VARIABLE.fullmatch(value.strip()) is not None


def _in_variables(value: str) -> bool:
    """Return whether variables hold all that is secret in a value: they are all of it, or every password of a login."""
    rest, variables = _VARIABLE.subn("", value)
    return variables > 0 and not (_LITERAL.search(rest) if "=" in rest else rest.strip())


class RateForm(Form):
    """Numbers at a rate, for trials."""

    rows_per_second: Positive | None = None
    rows_per_batch: Positive | None = None
    partitions: Positive | None = None


class SourceForm(OneOf):
    """Exactly one of them."""

    model_config = ConfigDict(json_schema_extra=ONE)

    json_files: FilesForm | None = None
    csv_files: FilesForm | None = None
    parquet_files: FilesForm | None = None
    text_files: TextForm | None = None
    delta_table: TableForm | None = None
    delta_changes: FeedForm | None = None
    kafka: KafkaForm | None = None
    rate: RateForm | None = None

    def make(self, folder: Path) -> Any:
        """Return the source.

        Args:
            folder: where the flow's file lies.

        Raises:
            DefinitionError: for a variable that is not set, and what the source itself refuses.
        """
        from pipelines import sources
        from pipelines.sources.base import StoredSource

        kind, form = self.part
        stated = form.model_dump(by_alias=True, exclude_none=True)
        used: dict[str, str] = {}
        given = {name: _expanded(value, used) for name, value in stated.items()}
        if isinstance(form, FilesForm | TextForm):
            options = given.pop("options")
            for option in options:
                if option in {part.alias or name for name, part in type(form).model_fields.items()}:
                    raise DefinitionError(f"{option} is no option of a reader", hint="write it beside `options`")
            given |= options
        if isinstance(form, KafkaForm):
            _check_references(given.get("options", {}))
        name = _OTHER_CLASSES.get(kind) or kind.title().replace("_", "")
        try:
            if "path" in given and scheme_of(given["path"]) is None:
                given["path"] = str((folder / given["path"]).absolute())
            source = getattr(sources, name)(**given)
            source.confined = True
            if isinstance(source, sources.Kafka):
                source.check_files()
            if isinstance(source, StoredSource) and source.kept_out([source.path]):
                raise DefinitionError(
                    f"{stated['path']} is no folder of a flow's", hint="name a folder of the flow's own files"
                )
            return source
        except (TrideltaError, TypeError, ValueError) as error:
            if (said := _unexpanded(str(error), used)) == str(error):
                raise
            raise DefinitionError(said) from None


_OTHER_CLASSES = {"delta_table": "DeltaTableSource", "delta_changes": "DeltaChangeFeed"}
"""Classes that are not named like their form."""


def _expanded(value: Any, used: dict[str, str], name: str = "") -> Any:
    """Return texts with the environment's variables put in, which `used` gets; `name` is that of an option."""
    if isinstance(value, dict):
        return {key: _expanded(item, used, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, used) for item in value]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        _check_variable(match[1], name)
        if match[1] not in os.environ:
            raise DefinitionError(f"the environment has no variable {match[1]}", hint=f"export {match[1]}=...")
        used[match[1]] = os.environ[match[1]]
        return used[match[1]]

    return _VARIABLE.sub(look_up, value)


def _unexpanded(text: str, used: dict[str, str]) -> str:
    """Return a text with the names of variables in place of their values, as they are or as Python shows them."""
    names = {shown: name for name, value in used.items() for shown in (value, repr(value)[1:-1]) if shown}
    # A short one only where it stands alone: it may be in any word.
    patterns = [
        re.escape(shown) if len(shown) >= _LONG else rf"(?<!\w){re.escape(shown)}(?!\w)"
        for shown in sorted(names, key=len, reverse=True)
    ]
    return re.sub("|".join(patterns), lambda match: f"${{{names[match[0]]}}}", text) if patterns else text


def _check_variable(variable: str, option: str) -> None:
    """Refuse variables that are not for whoever writes a flow's file."""
    if _OF_OPERATOR.fullmatch(variable):
        raise DefinitionError(f"the variable {variable} is not for flows", hint="set one of another name for them")
    if is_secret_variable(variable) and not is_secret(option):
        raise DefinitionError(
            f"the variable {variable} is a secret by its name", hint="only an option of Kafka that is a secret takes it"
        )


def _check_references(options: dict[str, str]) -> None:
    """Check what `env:NAME` and `file:PATH` in options of Kafka lead to."""
    for option, value in options.items():
        kind, _, where = value.partition(":")
        if kind == "env":
            _check_variable(where, option)
        if kind == "file" and not is_secret(option) and option not in _CERTIFICATES:
            raise DefinitionError(f"{option} is no secret, so it takes no file:PATH", hint="write the value")
