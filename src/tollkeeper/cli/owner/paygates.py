"""`tollkeeper paygate`: an owner's PayGates at a running gateway, with every field of the API."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollkeeper.cli.output import EXIT_FAILED, refuse, say, tell, write
from tollkeeper.cli.owner.at_gateway import (
    AsJson,
    Gateway,
    Named,
    OwnerKey,
    at_gateway,
    show_json,
    show_table,
    show_values,
)
from tollkeeper.cli.owner.gate_fields import with_gate_fields

if TYPE_CHECKING:
    from tollkeeper.client.gateway_account import GatewayAccount
    from tollkeeper.core.json_types import JsonObject

paygate_app = typer.Typer(help="PayGates, at a running gateway.", no_args_is_help=True)

SoldFile = Annotated[Path | None, typer.Option("--file", help="The file that is sold.", exists=True, dir_okay=False)]
_ONCE = ("secret", "keyId", "managementToken")


@paygate_app.command("create")
@with_gate_fields(is_update=False)
def create_command(
    *,
    fields: dict[str, Any],
    file: SoldFile = None,
    gateway: Gateway = None,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Put a price on a URL or on a file, and print the link that buyers call.

    A file needs the wallet of its owner; it is sent while a bar shows how far it has come.

    Example: tollkeeper paygate create --target http://localhost:3000/weather --price 0.01 --credits 10
    """
    if ("targetUrl" in fields) == (file is not None):
        raise typer.BadParameter("give either --target or --file")

    async def create(account: GatewayAccount) -> JsonObject:
        if file is not None and account.token is None:
            raise typer.BadParameter("a file needs --key-file, or a login: it belongs to a wallet")
        return await account.create(fields, file)

    made = at_gateway(gateway, key_file, create)
    if as_json:
        show_json(made)
        return
    once = "".join(f"\n{name} (shown once): {made[name]}" for name in _ONCE if name in made)
    if (problem := write(f"{made['accessUrl']}{once}\n".encode())) is not None:  # no other answer tells them
        refuse(f"{made['accessUrl']} was made, and could not be printed: {problem}{once}", code=EXIT_FAILED)
    _warn(made)


def _warn(made: JsonObject) -> None:
    for warning in made.get("warnings", ()):
        say(f"warning: {warning['message']}", typer.colors.YELLOW, sys.stderr)


@paygate_app.command("list")
def list_command(*, gateway: Gateway = None, key_file: OwnerKey = None, as_json: AsJson = False) -> None:
    """List your PayGates, the newest first.

    Example: tollkeeper paygate list --key-file wallet.key
    """

    async def listed(account: GatewayAccount) -> list[JsonObject]:
        return [gate async for gate in account.items("/api/v1/paygates")]

    gates = at_gateway(gateway, key_file, listed)
    if as_json:
        show_json(gates)
        return
    columns = {
        "id": lambda gate: gate["id"],
        "link": lambda gate: gate["accessUrl"],
        "price": lambda gate: gate["price"],
        "credits": lambda gate: gate["credits"],
        "network": lambda gate: gate["network"],
        "sold": lambda gate: gate["counters"]["purchases"],
        "calls": lambda gate: gate["counters"]["calls"],
        "revenue": lambda gate: gate["counters"]["revenue"],
        "enabled": lambda gate: gate["isEnabled"],
        "title": lambda gate: gate["title"],
    }
    show_table(gates, columns, "There are no PayGates of yours here. Make one with `tollkeeper paygate create`.")


@paygate_app.command("show")
def show_command(named: Named, *, gateway: Gateway = None, key_file: OwnerKey = None, as_json: AsJson = False) -> None:
    """Show a PayGate with all its fields.

    Example: tollkeeper paygate show weather
    """

    async def read(account: GatewayAccount) -> JsonObject:
        return await account.of(await account.find(named), "GET", has="accessUrl")

    gate = at_gateway(_gateway_of(named, gateway), key_file, read)
    if as_json:
        show_json(gate)
    else:
        show_values((name, value) for name, value in gate.items() if name not in {"apiVersion", "timestamp"})


@paygate_app.command("update")
@with_gate_fields(is_update=True)
def update_command(
    named: Named,
    *,
    fields: dict[str, Any],
    file: SoldFile = None,
    gateway: Gateway = None,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Change fields of a PayGate, all of them or none, or the file that it sells.

    Links to the former file that buyers have already keep serving it.

    Example: tollkeeper paygate update weather --price 0.02 --title "Weather of today"
    """
    if not fields and file is None:
        raise typer.BadParameter("name a field to change; `tollkeeper paygate update --help` lists them")

    async def update(account: GatewayAccount) -> JsonObject:
        return await account.update(await account.find(named), fields, file)

    gate = at_gateway(_gateway_of(named, gateway), key_file, update)
    if as_json:
        show_json(gate)
        return
    if file is not None:
        tell(f"{gate['accessUrl']} sells {gate['fileName']}, {gate['fileSize']} bytes, sha256 {gate['sha256']}")
    else:
        tell(f"{gate['accessUrl']} is changed: {', '.join(fields)}")
    for name in _ONCE:
        if name in gate:
            tell(f"{name} (shown once): {gate[name]}")
    _warn(gate)


@paygate_app.command("delete")
def delete_command(
    named: Named,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    gateway: Gateway = None,
    key_file: OwnerKey = None,
    as_json: AsJson = False,
) -> None:
    """Delete a PayGate. Credits that buyers hold are void then; `update --disabled` ends sales and keeps them.

    Example: tollkeeper paygate delete weather
    """
    if not yes and not (sys.stdin and sys.stdin.isatty()):
        raise typer.BadParameter("a delete voids the credits that buyers hold: give --yes")

    async def delete(account: GatewayAccount) -> JsonObject:
        gate = await account.find(named)
        if not yes:
            held = (await account.of(gate, "GET", "/stats", has="outstanding"))["outstanding"]
            tell(
                f"Buyers hold {held['credits']} credits, worth {held['liability']} USDC. A delete voids them.", err=True
            )
            typer.confirm("Delete it?", abort=True, err=True)
        return await account.of(gate, "DELETE", has="success")

    done = at_gateway(_gateway_of(named, gateway), key_file, delete)
    if as_json:
        show_json(done)
    else:
        tell(f"It is deleted, and {done['outstandingCredits']} credits that buyers held are void.")


@paygate_app.command("secret")
def secret_command(
    named: Named, *, gateway: Gateway = None, key_file: OwnerKey = None, as_json: AsJson = False
) -> None:
    """Replace the secret that signs what a target gets. The former one is still named for 24 hours.

    Example: tollkeeper paygate secret weather
    """

    async def replace(account: GatewayAccount) -> JsonObject:
        return await account.of(await account.find(named), "POST", "/secret", has="secret")

    made = at_gateway(_gateway_of(named, gateway), key_file, replace)
    if as_json:
        show_json(made)
    else:
        show_values((f"{name} (shown once)", made[name]) for name in ("secret", "keyId"))


def _gateway_of(named: str, gateway: str | None) -> str | None:
    """Return the gateway that a command is for: the link's own unless another one is named."""
    return gateway or (named.rstrip("/").rpartition("/")[0] if "://" in named else None)
