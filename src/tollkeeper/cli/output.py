"""Output of every command: exit codes, messages, refusals.

Everything that a command prints goes through here: what servers sent may be in it, and reaches a terminal without
control characters.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn, TextIO

import typer

from tollkeeper.core.printable import printable
from tollkeeper.settings.sources import wants_colours

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 3
EXIT_CHARGED: Final = 4  # `pay`: it failed, and something was charged
EXIT_UNKNOWN: Final = 5  # `pay`: it failed, and whether something was charged is not known


def refuse(*problems: str, code: int = EXIT_CONFIGURATION) -> NoReturn:
    """Say what is wrong and end the command."""
    for problem in problems:
        say(problem, typer.colors.RED, sys.stderr)
    sys.exit(code)


def say(text: str, colour: str, stream: TextIO) -> None:
    """A line, in colour where the stream shows any."""
    coloured = wants_colours(stream)
    typer.secho(printable(text, "\n"), file=stream, fg=colour if coloured else None, reset=coloured)


def tell(text: str = "", *, err: bool = False) -> None:
    """Print a line."""
    typer.echo(printable(text, "\n"), err=err)


def write(data: bytes) -> str | None:
    """Print to standard output, byte for byte unless it is a terminal; return what is wrong where it takes nothing."""
    if sys.stdout is None:
        return "standard output is closed"
    if sys.stdout.isatty():
        text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
        data = printable(text, "\n\t").encode(sys.stdout.encoding, "backslashreplace")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter tries again at its end
        return str(error.strerror)
    return None
