"""`tridelta validate FILE`: a flow's YAML file, checked as it would be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import rendering
from ops.cli.parts import AsJson, answer, verb
from pipelines.errors import FlowFileError

app = typer.Typer()


@verb(app)
def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A flow as YAML.")], as_json: AsJson = False
) -> None:
    """Check a flow's YAML file and list every fault with its line. Needs no Spark; exit code 1 if it is not a flow."""
    report = checked(file)
    answer(as_json, report, lambda: show(report))
    if not report["valid"]:
        raise typer.Exit(1)


def checked(file: Path) -> dict[str, Any]:
    """Return what a file is: `valid`, the flow and its streams, or the errors with line (from 1), path and problem.

    Nothing that the file names is imported or called.
    """
    from pipelines.flowmix import load_flow

    try:
        flow = load_flow(file, runs=False)
    except FlowFileError as error:
        faults = [{"line": line, "path": path, "problem": problem} for line, path, problem in error.faults]
        return {"file": str(file), "valid": False, "errors": faults}
    streams = [
        {
            "stream": stream.name,
            "from": "source" if stream.std_input else ", ".join(dict.fromkeys(feed.stream for feed in stream.feeds)),
            "operations": [operation.label for operation in stream.operations],
            "to": [*stream.targets, *stream.tables, *(["output"] if stream.std_output else [])],
        }
        for stream in flow.streams.values()
    ]
    return {"file": str(file), "valid": True, "flow": flow.name, "clock": flow.clock, "streams": streams, "errors": []}


def show(report: dict[str, Any]) -> None:
    """Print the answer for people."""
    if not report["valid"]:
        rendering.say(f"{report['file']} is not a flow:")
        for fault in report["errors"]:
            rendering.say(
                f"  line {fault['line']}" + (f", {fault['path']}" if fault["path"] else "") + f": {fault['problem']}"
            )
        return
    rows = [
        {**stream, "operations": len(stream["operations"]), "to": ", ".join(stream["to"])}
        for stream in report["streams"]
    ]
    rendering.say(str(report["file"]))
    rendering.rows(f"flow {report['flow']}, clock: {report['clock']}", rows)
