"""The commands: what is typed, what is printed, the exit code."""

from tollkeeper.cli.main import app, main

__all__ = ["app", "main"]
