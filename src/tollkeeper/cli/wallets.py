"""`tollkeeper wallet`: a key of one's own to buy or sell with, its address, and what it holds."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tollkeeper.cli.options import KeyFile, check_url, read_wallet_key
from tollkeeper.cli.output import EXIT_FAILED, refuse, tell
from tollkeeper.cli.owner.at_gateway import AsJson, show_json, show_values
from tollkeeper.core.networks import NETWORKS

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.networks import Network

wallet_app = typer.Typer(help="Wallets of your own.", no_args_is_help=True)


@wallet_app.command("new")
def new_command(
    path: Annotated[Path, typer.Argument(help="The file to write the private key into; it must not be there yet.")],
    *,
    solana: Annotated[bool, typer.Option("--solana", help="A wallet of Solana; else of Base and other EVM.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a private key, write it into a file that you alone can read, and print its address.

    Example: tollkeeper wallet new wallet.key
    """
    import os

    from tollkeeper.core.keys.wallet_keys import WalletKey
    from tollkeeper.core.networks import Family
    from tollkeeper.core.solana.ed25519 import public_key
    from tollkeeper.storage.engine.private_files import open_private_file

    seed = os.urandom(32)
    key = WalletKey(Family.SOLANA if solana else Family.EVM, seed)
    text = json.dumps(list(seed + public_key(seed))) if solana else "0x" + seed.hex()
    try:
        with open_private_file(path) as file:
            file.write(text.encode() + b"\n")
            os.fsync(file.fileno())
    except FileExistsError:
        refuse(f"{path} is there already, and nothing was written: name another file", code=EXIT_FAILED)
    except OSError as error:
        refuse(f"{path} cannot be written ({error.strerror}): name another file", code=EXIT_FAILED)
    if as_json:
        show_json({"walletAddress": key.address, "keyFile": str(path)})
    else:
        tell(key.address)
        tell(f"Its private key is in {path}. Keep a copy in a safe place: nobody can make it again.", err=True)


@wallet_app.command("address")
def address_command(*, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Print the address of a private key.

    Example: tollkeeper wallet address --key-file wallet.key
    """
    if key_file is None:
        raise typer.BadParameter("give --key-file")
    key = read_wallet_key(key_file)
    if as_json:
        show_json({"walletAddress": key.address, "family": key.family})
    else:
        tell(key.address)


@wallet_app.command("balance")
def balance_command(
    address: Annotated[str | None, typer.Argument(help="A wallet's address, unless --key-file is given.")] = None,
    *,
    rpc_url: Annotated[str, typer.Option("--rpc-url", help="A node of the network.")],
    network: Annotated[str, typer.Option(help=f"One of {', '.join(NETWORKS)}.")] = "base-sepolia",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print how much USDC a wallet holds, and how much of what pays fees, as a node tells it.

    Example: tollkeeper wallet balance --key-file wallet.key --rpc-url http://127.0.0.1:8545
    """
    import asyncio

    from tollkeeper.client.balances import balances_of
    from tollkeeper.client.requests import RefusedError
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.configuration import parse_network
    from tollkeeper.core.wallets import parse_address_of, shown_address

    if (address is None) == (key_file is None):
        raise typer.BadParameter("give either an address or --key-file")
    check_url("--rpc-url", rpc_url)
    try:
        chosen: Network = parse_network(network)
        named = address if key_file is None else read_wallet_key(key_file).address
        holder = parse_address_of(chosen.family, named, field="address")
    except (ApiError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    try:
        held: JsonObject = asyncio.run(balances_of(holder, chosen, rpc_url))
    except RefusedError as error:
        refuse(str(error), code=EXIT_FAILED)
    told = {"walletAddress": shown_address(holder), "network": chosen.name, **held}
    if as_json:
        show_json(told)
    else:
        show_values(told.items())
