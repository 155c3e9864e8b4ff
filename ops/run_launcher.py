"""The former place of `ops.launcher.run_launcher`, which a home's `dagster.yaml` names; it goes with version 0.3."""

from ops.launcher.run_launcher import PreloadedRunLauncher

__all__ = ["PreloadedRunLauncher"]
