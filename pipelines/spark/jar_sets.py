"""Jars by name, size and digest, and the sets in which they are fetched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Jar:
    """One jar as it must lie in the cache."""

    group: str
    artifact: str
    version: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Return the name that Spark's resolver gives it."""
        return f"{self.group}_{self.artifact}-{self.version}.jar"

    @property
    def package(self) -> str:
        """Return the name that the resolver takes."""
        return f"{self.group}:{self.artifact}:{self.version}"


@dataclass(frozen=True)
class JarSet:
    """Jars that the resolver fetches in one go, and what it must leave out of all that they name."""

    name: str
    jars: tuple[Jar, ...]
    excluded: tuple[str, ...]
