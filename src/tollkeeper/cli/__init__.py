"""The commands: what is typed, what is printed, the exit code."""

from tollkeeper.cli.main import main

__all__ = ["main"]
