"""The base of the forms of a flow's YAML: unknown parts are refused at their own line, with the nearest known one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from pipelines.errors import nearest

ONE: dict[str, Any] = {"minProperties": 1, "maxProperties": 1}
"""For the JSON schema of a `OneOf`."""


class Form(BaseModel):
    """A mapping of named parts; a part that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, given: Any) -> Any:
        if isinstance(given, dict):
            known = cls.parts()
            for name in given:
                if name not in known:
                    text = f'there is no "{name}" here; there are: {", ".join(known)}{nearest(str(name), known)}'
                    raise PydanticCustomError("unknown_part", "{text}", {"text": text, "part": name})
            cls._check_parts(given)
        return given

    @classmethod
    def parts(cls) -> tuple[str, ...]:
        """Return the names of its parts, as YAML has them."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def _check_parts(cls, given: dict[Any, Any]) -> None:
        """Check more of a mapping whose parts are known."""


class OneOf(Form):
    """A mapping of exactly one of its parts."""

    @classmethod
    def _check_parts(cls, given: dict[Any, Any]) -> None:
        if len(given) != 1:
            raise ValueError(
                f"takes exactly one of {', '.join(cls.parts())}; got {', '.join(map(str, given)) or 'none'}"
            )
        if None in given.values():
            raise ValueError(f"{next(iter(given))} says nothing")

    @property
    def part(self) -> tuple[str, Any]:
        """Return the name of the part that is there, as Python has it, and its value."""
        name = next(iter(self.model_fields_set))
        return name, getattr(self, name)
