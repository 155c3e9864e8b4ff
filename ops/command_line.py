"""The former place of `ops.cli.app`; it goes with version 0.3."""

from ops.cli.app import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
