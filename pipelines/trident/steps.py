"""The base of every part of a Stream: its topology, its node, and adding a node behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pipelines.errors import FunctionError
from pipelines.graph import nodes
from pipelines.graph.fields import checked_name

if TYPE_CHECKING:
    from pipelines.trident.topology import TridentTopology


def checked_resources(operation: str, kinds: dict[str, float]) -> tuple[tuple[str, float], ...]:
    """Return resources by kind, in order of their names."""
    if not kinds:
        raise FunctionError(operation, "takes at least one kind, e.g. cpu=50, memory=1024")
    for kind, value in kinds.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise FunctionError(operation, f"{kind}={value!r} is not a number from 0")
    return tuple(sorted((kind, float(value)) for kind, value in kinds.items()))


def in_form(
    operation: str, args: Sequence[Any], named: Mapping[str, Any], forms: Sequence[Sequence[str]], takes: str
) -> tuple[Any, ...]:
    """Return arguments by position: of the first form whose last names are those given.

    Args:
        forms: the names of all arguments, in order, of each form.
        takes: says the forms.

    Raises:
        FunctionError: for a name of no form, or if there is no such form.
    """
    if strange := sorted(set(named).difference(*forms)):
        raise FunctionError(operation, f"does not take {', '.join(strange)}", hint=takes)
    for form in forms:
        if len(args) < len(form) and set(form[len(args) :]) == set(named):
            return (*args, *(named[name] for name in form[len(args) :]))
    raise FunctionError(operation, takes)


class Steps:
    """The base of `Stream`. Immutable but for what is said of its last node: a hint, resources."""

    def __init__(self, topology: TridentTopology, node: int, name: str | None = None) -> None:
        self._topology, self._node, self._name = topology, node, name

    @property
    def output_fields(self) -> tuple[str, ...]:
        """The fields of the stream's tuples, in order."""
        return self._topology.graph[self._node].fields

    @property
    def node(self) -> int:
        """Id of the node whose output this stream is."""
        return self._node

    def name(self, name: str) -> Self:
        """Return the same stream; operations that follow carry the name (Trident rules 1.2, metadata)."""
        return type(self)(self._topology, self._node, checked_name("stream", name))

    def to_stream(self) -> Self:
        """Return this stream; of a grouped one the stream without its grouping."""
        return self

    def parallelism_hint(self, tasks: int) -> Self:
        """Set in how many tasks the operation before runs, and all others back to and on to a repartition (rules 3.9).

        The largest hint between two repartitions wins. Said right behind a repartition it concerns nothing, as in the
        original: hint what follows.

        Raises:
            FunctionError: if it is not a positive whole number.
        """
        if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1:
            raise FunctionError("parallelism_hint", f"takes a positive whole number; got {tasks!r}")
        self._topology.graph.put(replace(self._topology.graph[self._node], hint=tasks))
        return self

    def set_resources(self, **kinds: float) -> Self:
        """Return what the operation before needs, by kind: `set_resources(cpu=50, memory=1024)` (rules 3.10).

        cpu in percent of a core, memory and off_heap in MB. What is said again replaces its kind.

        Raises:
            FunctionError: if a value is not a number from 0.
        """
        node = self._topology.graph[self._node]
        new = dict(checked_resources("set_resources", kinds))
        self._topology.graph.put(replace(node, resources=tuple(sorted({**dict(node.resources), **new}.items()))))
        return self

    def _add(self, node_type: type[nodes.Node], /, *, fields: Sequence[str] | None = None, **more: Any) -> Self:
        """Add a node behind this stream and return its stream."""
        kept = self.output_fields if fields is None else tuple(fields)
        node = self._topology.graph.new(node_type, (self._node,), fields=kept, name=self._name, **more)
        return type(self)(self._topology, node.id, self._name)
