"""`tollkeeper stats`, `requests`, `history` and `credits`: what happened, as the gateway and its hub tell a wallet."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import json
import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tollkeeper.cli.output import EXIT_FAILED, refuse, tell
from tollkeeper.cli.owner.at_gateway import (
    AsJson,
    Gateway,
    OwnerKey,
    at_gateway,
    show_json,
    show_table,
    show_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.client.gateway_account import Gate, GatewayAccount
    from tollkeeper.core.json_types import JsonObject

_EVERY: Final = 100
_FOLLOW_SECONDS: Final = 2.0

OfGate = Annotated[str | None, typer.Argument(metavar="[GATE]", help="A PayGate: id, slug or link; else all of yours.")]
Count = Annotated[int, typer.Option("--limit", help="So many, the newest.", min=1, max=_EVERY)]


def stats_command(
    named: OfGate = None,
    *,
    since: Annotated[str | None, typer.Option("--from", help="A day or time (ISO 8601); else seven days ago.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="A day or time (ISO 8601); else now.")] = None,
    bucket: Annotated[str, typer.Option("--bucket", help="hour or day.")] = "day",
    gateway: Gateway = None,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Sum up revenue, purchases, calls, 402s, latencies and outstanding credits.

    Example: tollkeeper stats weather --from 2026-11-01
    """
    query = {name: value for name, value in (("from", since), ("to", until), ("bucket", bucket)) if value}

    async def ask(account: GatewayAccount) -> JsonObject:
        if named is None:
            return await account.ask("GET", "/api/v1/stats", has="revenue", params=query)
        return await account.of(await account.find(named), "GET", "/stats", has="revenue", params=query)

    sums = at_gateway(gateway, key_file, ask)
    if as_json:
        show_json(sums)
        return
    show_values((name, sums[name]) for name in ("from", "to", *_SUMS, "outstanding"))
    tell()
    columns: dict[str, Callable[[Any], object]] = {
        sums["bucket"]: lambda row: row["start"],
        "revenue": lambda row: row["revenue"],
        "purchases": lambda row: row["purchases"],
        "calls": lambda row: row["calls"]["total"],
        "failed": lambda row: row["calls"]["failed"],
        "402s": lambda row: row["challenges"],
        "p95 ms": lambda row: None if row["latencyUs"]["p95"] is None else row["latencyUs"]["p95"] // 1000,
    }
    show_table(sums["data"], columns, "Nothing happened in this time.")


_SUMS: Final = ("revenue", "purchases", "calls", "challenges", "refusals", "latencyUs")


def requests_command(
    named: OfGate = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    outcome: Annotated[
        str | None,
        typer.Option(help="Only one kind: served, targetError, failed, clientGone, challenged or refused."),
    ] = None,
    limit: Count = 20,
    gateway: Gateway = None,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Show the requests at your PayGates, the oldest of the newest first; with --json one line of JSON each.

    Example: tollkeeper requests weather --follow
    """
    query = {"limit": limit, **({} if outcome is None else {"outcome": outcome})}

    async def show(account: GatewayAccount) -> None:
        await show_requests(account, await _gates(account, named), query, follow=follow, as_json=as_json)

    at_gateway(gateway, key_file, show)


async def _gates(account: GatewayAccount, named: str | None) -> dict[str, Gate]:
    """Return the gates by slug: the named one, or all of the owner's. Raises: RefusedError."""
    from tollkeeper.client.gateway_account import GATES, Gate

    if named is not None:
        gate = await account.find(named)
        return {(await account.of(gate, "GET", has="slug"))["slug"]: gate}
    return {gate["slug"]: Gate(gate["id"]) async for gate in account.items(GATES)}


async def show_requests(
    account: GatewayAccount, gates: dict[str, Gate], query: JsonObject, *, follow: bool, as_json: bool = False
) -> None:
    """Print the newest requests of gates, and with `follow` those that come, for ever. Raises: RefusedError."""
    import asyncio

    shown: set[str] = set()
    while True:
        newest: list[tuple[str, JsonObject]] = []
        for slug, gate in gates.items():
            page = await account.of(gate, "GET", "/requests", has="data", params=query)
            newest += [(slug, row) for row in page["data"]]
        newest.sort(key=lambda one: (one[1]["at"], one[1]["requestId"]))
        told = [one for one in newest if one[1]["requestId"] not in shown]
        for slug, row in told if shown else told[-query["limit"] :]:
            tell(json.dumps({"slug": slug, **row}) if as_json else _line_of(slug, row))
        sys.stdout.flush()
        shown.update(row["requestId"] for _, row in newest)
        if not follow:
            return
        await asyncio.sleep(_FOLLOW_SECONDS)


def _line_of(slug: str, row: JsonObject) -> str:
    code = f" {row['code']}" if row["code"] else ""
    paid = f"  {row['purchaseId']}" if row["purchaseId"] else ""
    milliseconds = row["durationUs"] / 1000
    return f"{row['at']}  {slug}  {row['method']} {row['status']} {row['outcome']}{code}  {milliseconds:.1f} ms{paid}"


def history_command(
    *,
    limit: Count = 20,
    offset: Annotated[int, typer.Option(help="Leave out so many of the newest.", min=0)] = 0,
    network: Annotated[str | None, typer.Option(help="Only those on this network.")] = None,
    hub: Annotated[str | None, typer.Option("--hub", help="The hub's URL; else the gateway's /hub.")] = None,
    gateway: Gateway = None,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Show payments that your wallet signed or received, the newest first.

    A hub that runs apart from the gateway wants a login of its own: --key-file, or `tollkeeper login --gateway HUB`.

    Example: tollkeeper history --limit 10
    """
    query = {"limit": limit, "offset": offset, **({} if network is None else {"network": network})}
    prefix = "/hub" if hub is None else ""

    async def ask(account: GatewayAccount) -> JsonObject:
        return await account.ask("GET", f"{prefix}/api/v1/history", has="history", params=query)

    told = at_gateway(hub or gateway, key_file, ask)
    if as_json:
        show_json(told)
        return
    from tollkeeper.core.usdc import format_usdc

    columns: dict[str, Callable[[Any], object]] = {
        "time": lambda item: item["createdAt"],
        "type": lambda item: item["type"],
        "USDC": lambda item: format_usdc(int(item["amount"])),
        "network": lambda item: item["network"],
        "status": lambda item: item["status"],
        "signer": lambda item: item["signerAddress"],
        "transaction": lambda item: item["transactionHash"],
        "error": lambda item: item["error"],
    }
    show_table(told["history"], columns, "There are no payments of this wallet here.")


def credits_command(
    *,
    kept: Annotated[bool, typer.Option("--kept", help="What `pay` keeps on this machine, of every gateway.")] = False,
    gateway: Gateway = None,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Show the credits that your wallet bought at a gateway, or with --kept those that `pay` keeps here.

    Example: tollkeeper credits --key-file wallet.key
    """
    if kept:
        _show_kept(as_json=as_json)
        return

    async def ask(account: GatewayAccount) -> list[JsonObject]:
        if account.token is None:
            refuse(
                f"nobody is logged in at {account.url}: give --key-file, or run `tollkeeper login`; "
                "--kept shows what `pay` keeps",
                code=EXIT_FAILED,
            )
        return [purchase async for purchase in account.items("/api/v1/credits")]

    held = at_gateway(gateway, key_file, ask)
    if as_json:
        show_json(held)
        return
    columns: dict[str, Callable[[Any], object]] = {
        "gate": lambda purchase: purchase["slug"],
        "left": lambda purchase: purchase["remaining"],
        "used": lambda purchase: purchase["used"],
        "bought": lambda purchase: purchase["granted"],
        "until": lambda purchase: purchase["expiresAt"],
        "credit token": lambda purchase: purchase.get("creditToken"),
    }
    show_table(held, columns, "This wallet bought nothing here.")


def _show_kept(*, as_json: bool) -> None:
    from tollkeeper.client.kept_purchases import PurchaseStore
    from tollkeeper.client.requests import RefusedError
    from tollkeeper.core.usdc import format_usdc

    try:
        purchases = PurchaseStore().all()
    except RefusedError as error:
        refuse(str(error), code=EXIT_FAILED)
    rows = [
        {
            "gate": one.gate,
            "walletAddress": one.wallet,
            "network": one.network,
            "paid": format_usdc(one.amount_micro),
            "outcome": "unknown" if one.is_sent else "bought",
            "left": one.left,
            "creditToken": one.token,
        }
        for one in purchases
    ]
    if as_json:
        show_json(rows)
        return
    names = dict.fromkeys(chain.from_iterable(rows))
    show_table(rows, {name: lambda row, name=name: row[name] for name in names}, "`pay` keeps nothing on this machine.")  # type: ignore[misc]  # the loop's own name
