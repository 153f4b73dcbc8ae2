"""What every command has in common: exit codes, and how a refusal is said."""

from __future__ import annotations

import sys
from typing import Final, NoReturn, TextIO

import typer

from tollkeeper.settings import wants_colours

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 3


def refuse(*problems: str, code: int = EXIT_CONFIGURATION) -> NoReturn:
    """Says what is wrong and ends the command."""
    for problem in problems:
        say(problem, typer.colors.RED, sys.stderr)
    sys.exit(code)


def say(text: str, colour: str, stream: TextIO) -> None:
    """A line, in colour where the stream shows any."""
    typer.secho(text, file=stream, fg=colour if wants_colours(stream) else None)
