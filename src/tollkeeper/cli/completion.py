"""`tollkeeper completion`: a shell's script that completes commands and options."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

from typing import Annotated

import typer

from tollkeeper.cli.output import tell

_SHELLS = ("bash", "zsh", "fish")


def completion_command(shell: Annotated[str, typer.Argument(help=f"One of {', '.join(_SHELLS)}.")]) -> None:
    """Print the script that lets a shell complete this command.

    Example: tollkeeper completion bash > ~/.local/share/bash-completion/completions/tollkeeper
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer exports it nowhere

    if shell not in _SHELLS:
        raise typer.BadParameter(f"it is none of {', '.join(_SHELLS)}")
    tell(get_completion_script(prog_name="tollkeeper", complete_var="_TOLLKEEPER_COMPLETE", shell=shell))
