"""Processes that end by SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
Kill = Mapping[str, Any]
"""When a life ends: what `tests.crash.driver.Killer` takes."""


def one_life(module: str, plan: Mapping[str, Any]) -> None:
    """Run a module with a plan in a process of its own; it must end by the SIGKILL that `plan["kill"]` names."""
    process = subprocess.run(
        [sys.executable, "-m", module, json.dumps(plan)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seen = f"{process.stdout}\n{process.stderr[-3000:]}"
    assert process.returncode == -signal.SIGKILL, f"not killed at {plan['kill']}:\n{seen}"
