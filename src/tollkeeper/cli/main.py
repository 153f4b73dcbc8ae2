"""The command's entry. Reads the command line of a process that serves by itself, where it is spelled plainly.

The library that reads all others stays in memory, nine megabytes with what it needs, which a process that serves for
months is better without. Whatever is not plain (another command, `--help`, `--port=8402`, a value that is out of range)
goes to that library, which alone decides what is refused and how. Both ways end in the same call.
"""
# ruff: noqa: PLC0415 - what a process does not need is not imported

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from tollkeeper.serving.process.imports import collect_rarely, leave_rich_out
from tollkeeper.settings.loading import WORKERS_MAX
from tollkeeper.settings.model import Role, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence


_ROLES: Final = {"serve": Role.SERVE, "gateway": Role.GATEWAY, "hub": Role.HUB}
COMPLETION: Final = "_TOLLKEEPER_COMPLETE"  # set by a shell that asks what could be typed (`completion`)
_INTERRUPTED: Final = 128 + 2  # as shells tell a process that SIGINT ended
_NUMBERS: Final = {"--port": range(65_536), "--workers": range(1, WORKERS_MAX + 1)}


def main() -> None:
    """Run the command `tollkeeper`."""
    collect_rarely()
    plain = read_plain(sys.argv[1:])
    if plain is not None:
        leave_rich_out()
    from tollkeeper.serving import StartError
    from tollkeeper.storage.engine.database import StorageError

    try:
        if plain is None:
            from tollkeeper.cli.commands import app

            if COMPLETION in os.environ:
                from typer.completion import completion_init  # type: ignore[attr-defined]  # typer exports it nowhere

                completion_init()
            app(prog_name="tollkeeper" if COMPLETION in os.environ else None)
        else:
            from tollkeeper.cli.service import serve

            role, options = plain
            serve(role, options.pop("config", None), options)
    except SettingsError as error:
        _refuse(*(str(finding) for finding in error.findings))
    except StorageError as error:
        _refuse(error.message)
    except StartError as error:
        _refuse(str(error))
    except KeyboardInterrupt:  # before it served; then a signal is an order to stop
        sys.exit(_INTERRUPTED)


def read_plain(words: Sequence[str]) -> tuple[Role, dict[str, str]] | None:
    """Role and options of `serve`, `gateway` or `hub` with options in two words each, once each; else None."""
    if not words or words[0] not in _ROLES or len(words) % 2 == 0:
        return None
    options: dict[str, str] = {}
    for name, value in zip(words[1::2], words[2::2], strict=True):
        is_number = name in _NUMBERS and value.isascii() and value.isdecimal() and int(value) in _NUMBERS[name]
        is_text = name in {"--config", "--host"} and value != "" and not value.startswith("-")
        if not (is_number or is_text) or name[2:] in options:
            return None
        options[name[2:]] = str(int(value)) if is_number else value
    return _ROLES[words[0]], options


def _refuse(*problems: str) -> None:
    from tollkeeper.cli.output import refuse

    refuse(*problems)
