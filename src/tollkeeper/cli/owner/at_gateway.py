"""Shared by the commands at a running gateway: which one, as whom, and how its refusals and lists are printed."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from tollkeeper.cli.options import check_url, read_wallet_key
from tollkeeper.cli.output import EXIT_FAILED, refuse, tell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from tollkeeper.client.gateway_account import GatewayAccount
    from tollkeeper.core.json_types import JsonMapping

T = TypeVar("T")

DEFAULT: Final = "http://127.0.0.1:8402"
Gateway = Annotated[
    str | None, typer.Option("--gateway", help=f"The gateway's URL; else that of the last login, else {DEFAULT}.")
]
OwnerKey = Annotated[
    Path | None, typer.Option("--key-file", help="The private key of the owner's wallet; else the kept login.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Named = Annotated[str, typer.Argument(metavar="GATE", help="A PayGate: its id, its slug or its link.")]


def gateway_url(given: str | None) -> str:
    """Return the URL of the gateway that a command is for. Raises: BadParameter, RefusedError."""
    from tollkeeper.client.logins import KeptLogins

    if given is not None:
        check_url("--gateway", given)
    return (given or KeptLogins().current_server or DEFAULT).rstrip("/")


def at_gateway(gateway: str | None, key_file: Path | None, act: Callable[[GatewayAccount], Awaitable[T]]) -> T:
    """Return what `act` returns at a gateway; end the command with what it refused."""
    import asyncio

    from tollkeeper.client.gateway_account import open_account
    from tollkeeper.client.requests import RefusedError

    key = None if key_file is None else read_wallet_key(key_file)

    async def acted() -> T:
        async with open_account(gateway_url(gateway), key) as account:
            return await act(account)

    try:
        return asyncio.run(acted())
    except (RefusedError, OSError) as error:
        refuse(f"{error}{_remedy(str(error), has_key=key is not None)}", code=EXIT_FAILED)
    except (AttributeError, KeyError, TypeError, ValueError):
        refuse(f"{gateway or DEFAULT} does not answer as a gateway does: is that one's URL?", code=EXIT_FAILED)


def _remedy(refusal: str, *, has_key: bool) -> str:
    """Return the option that helps, which no gateway can name."""
    if "AUTH_REQUIRED" in refusal and not has_key:
        return ": name its owner's wallet by --key-file, or run `tollkeeper login`"
    if "paymentAddress is required" in refusal:
        return ". Here: --payment-address, or --key-file"
    return ""


def show_json(value: object) -> None:
    """Print a value as JSON."""
    tell(json.dumps(value, indent=2))


def show_table(rows: Sequence[JsonMapping], columns: Mapping[str, Callable[[Any], object]], empty: str) -> None:
    """Print rows in columns of equal width, or a sentence where there are none."""
    if not rows:
        tell(empty)
        return
    try:
        lines = [list(columns), *([_cell(read(row)) for read in columns.values()] for row in rows)]
    except (KeyError, TypeError, ValueError):
        refuse("this list is not what a gateway answers: is that one's URL?", code=EXIT_FAILED)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        tell("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def show_values(values: Iterable[tuple[str, Any]]) -> None:
    """Print names with their values, one a line."""
    shown = [(name, _cell(value)) for name, value in values]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        tell(f"{name:<{width}}  {text}".rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "-"
    return str(value).replace("\n", " ")
