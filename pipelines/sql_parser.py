"""sqlglot's reading of Spark's SQL with an end: for nested names of types it tries readings twofold with each depth."""

from __future__ import annotations

from typing import Any

from sqlglot.dialects.spark import Spark


class EndlessTextError(Exception):
    """A text takes the parser more work than any that means something."""

    def __init__(self) -> None:
        super().__init__("takes too long to read")


class BoundedParser(Spark.Parser):  # type: ignore[misc, valid-type]
    """Counts how often it looks for a type. Its own errors would not do: with them it goes on to the next reading."""

    def reset(self) -> None:
        """Begin another text."""
        super().reset()
        self._looks = 0

    def _parse_types(self, *given: Any, **more: Any) -> Any:
        self._looks += 1
        # The most that a text with a meaning has needed is a look per three tokens.
        if self._looks > 200 + 4 * self._tokens_size:
            raise EndlessTextError
        return super()._parse_types(*given, **more)


class BoundedSpark(Spark):
    """Spark's SQL, read with an end."""

    Parser = BoundedParser
