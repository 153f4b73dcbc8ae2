"""The commands of owners and buyers at a running gateway: `paygate create`, `paygate replace` and `pay`."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tollkeeper.cli.output import EXIT_FAILED, refuse, say, tell, write

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tollkeeper.client.buying import PaidAnswer
    from tollkeeper.core.keys.wallet_keys import WalletKey

KeyFile = Annotated[Path | None, typer.Option(help="The private key of a wallet, of either chain family, in a file.")]


def create_command(  # noqa: PLR0913 - one for each option
    *,
    gateway: Annotated[str, typer.Option(help="The gateway's URL.")] = "http://127.0.0.1:8402",
    price: Annotated[str, typer.Option(help="USDC for one purchase, such as 0.50.")],
    target: Annotated[str | None, typer.Option(help="The URL whose calls are sold.")] = None,
    file: Annotated[Path | None, typer.Option(help="The file that is sold.", exists=True, dir_okay=False)] = None,
    credit_count: Annotated[int, typer.Option("--credits", help="Calls or links for one purchase.", min=1)] = 1,
    title: Annotated[str, typer.Option(help="What buyers read.")] = "",
    network: Annotated[str | None, typer.Option(help="Where it is paid; else the gateway's default network.")] = None,
    payment_address: Annotated[str | None, typer.Option(help="Who is paid, unless the gate's owner is.")] = None,
    key_file: KeyFile = None,
) -> None:
    """Put a price on a URL or on a file, and print the link that buyers call.

    A file needs the wallet of its owner; it is sent while a bar shows how far it has come.

    Example: tollkeeper paygate create --file report.pdf --price 0.50 --key-file wallet.key
    """
    import asyncio

    from tollkeeper.client.owner import make_paygate
    from tollkeeper.client.requests import RefusedError

    if (target is None) == (file is None):
        raise typer.BadParameter("give either --target or --file")
    if file is not None and key_file is None:
        raise typer.BadParameter("a file needs --key-file: it belongs to a wallet")
    _check_url("--gateway", gateway)
    chosen = {"network": network, "paymentAddress": payment_address}
    fields = {"price": price, "credits": credit_count, "title": title, **{k: v for k, v in chosen.items() if v}}
    key = None if key_file is None else _read_wallet_key(key_file)
    try:
        made = asyncio.run(make_paygate(gateway.rstrip("/"), key, fields, target or file or ""))
    except (RefusedError, OSError) as error:
        refuse(f"{error}{_remedy(str(error), is_logged_in=key is not None)}", code=EXIT_FAILED)
    token = f"\nmanagementToken (shown once): {made['managementToken']}" if "managementToken" in made else ""
    if (problem := write(f"{made['accessUrl']}{token}\n".encode())) is not None:  # no other answer tells the token
        refuse(f"{made['accessUrl']} was made, and could not be printed: {problem}{token}", code=EXIT_FAILED)
    for warning in made.get("warnings", ()):
        say(f"warning: {warning['message']}", typer.colors.YELLOW, sys.stderr)


def _remedy(refusal: str, *, is_logged_in: bool) -> str:
    """The option that helps, which no gateway can name."""
    if "AUTH_REQUIRED" in refusal and not is_logged_in:
        return ": name its owner's wallet by --key-file"
    if "paymentAddress is required" in refusal:
        return ". Here: --payment-address, or --key-file"
    return ""


def replace_command(
    *,
    link: Annotated[str, typer.Argument(help="The link of a file PayGate, or its slug.")],
    file: Annotated[Path, typer.Option(help="The file that is sold from now on.", exists=True, dir_okay=False)],
    key_file: Annotated[Path, typer.Option(help="The private key of the PayGate's owner, in a file.")],
    gateway: Annotated[str | None, typer.Option(help="The gateway's URL, unless the link says it.")] = None,
) -> None:
    """Sell another file by the same link. Links to the former one that buyers have already keep serving it.

    Example: tollkeeper paygate replace http://127.0.0.1:8402/bONTVfok --file report-2.pdf --key-file wallet.key
    """
    import asyncio

    from tollkeeper.client.owner import replace_file
    from tollkeeper.client.requests import RefusedError

    gateway = gateway or (link.rstrip("/").rpartition("/")[0] if "://" in link else None)
    if gateway is None:
        raise typer.BadParameter("a slug alone needs --gateway")
    _check_url("--gateway", gateway)
    key = _read_wallet_key(key_file)
    try:
        gate = asyncio.run(replace_file(gateway.rstrip("/"), key, link, file))
    except (RefusedError, OSError) as error:
        refuse(str(error), code=EXIT_FAILED)
    tell(f"{gate['accessUrl']} sells {gate['fileName']}, {gate['fileSize']} bytes, sha256 {gate['sha256']}")


def pay_command(  # noqa: PLR0913 - one for each option
    *,
    url: Annotated[str, typer.Argument(help="The link of a PayGate, or of any x402 version 1 server.")],
    most: Annotated[str, typer.Option("--max", help="The most that it may cost, in USDC.")] = "0.10",
    key_file: KeyFile = None,
    test_wallet: Annotated[bool, typer.Option("--test-wallet", help="Pay with the sandbox's public wallets.")] = False,
    network: Annotated[str | None, typer.Option(help="Where to pay; else where the link asks first.")] = None,
    rpc_url: Annotated[str | None, typer.Option("--rpc-url", help="A node of the network; on Solana only.")] = None,
    method: Annotated[str, typer.Option(help="GET, POST, ...")] = "GET",
    data: Annotated[str | None, typer.Option(help="The body of the call; @FILE reads one.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="A header, as 'Name: value'; may be repeated.")] = None,
    credit_token: Annotated[str | None, typer.Option(help="Spend credits of this X-Credit-Token first.")] = None,
) -> None:
    """Call a link, pay what it asks in USDC up to a limit, and print the answer.

    The answer's body goes to standard output, everything else to standard error. Exits with 1 unless it was served.

    Example: tollkeeper pay http://127.0.0.1:8402/weather --test-wallet --max 0.05
    """
    import asyncio

    from tollkeeper.client.buying import WantedCall, pay
    from tollkeeper.client.requests import RefusedError
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.configuration import parse_network
    from tollkeeper.core.usdc import parse_usdc
    from tollkeeper.sandbox.wallets import buyer_keys

    if (key_file is None) != test_wallet:
        raise typer.BadParameter("give either --key-file or --test-wallet")
    if credit_token is not None and not credit_token.strip():  # of a variable that is not set: it would be paid anew
        raise typer.BadParameter("--credit-token: it is empty")
    _check_url("the link", url)
    try:
        chosen = None if network is None else parse_network(network)
    except ValueError as error:
        raise typer.BadParameter(f"--network: {error}") from None
    try:
        most_micro = parse_usdc(most, field="--max")
        body = None if data is None else Path(data[1:]).read_bytes() if data.startswith("@") else data.encode()
        headers = dict(_header_of(line) for line in header or [])
    except ApiError as error:
        raise typer.BadParameter(error.message) from None
    except OSError as error:
        raise typer.BadParameter(f"--data: {error.filename} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    keys = buyer_keys() if key_file is None else (_read_wallet_key(key_file),)
    wish = WantedCall(url, keys, most_micro, chosen, rpc_url, method, body, headers, credit_token)
    try:
        called = asyncio.run(_until_ended(pay(wish, partial(tell, err=True))))
    except RefusedError as error:
        refuse(str(error), code=EXIT_FAILED)
    # Before the body, which may find no room: the token is told by no other answer.
    tell(f"status {called.status}", err=True)
    for name, value in called.told:
        tell(f"{name} {value}", err=True)
    if (problem := write(called.body)) is not None:
        refuse(f"the answer's body was not printed: {problem}", code=EXIT_FAILED)
    sys.exit(0 if called.status < 400 else EXIT_FAILED)


async def _until_ended(paying: Coroutine[Any, Any, PaidAnswer]) -> PaidAnswer:
    """Run the payment, and tell what was signed even if somebody ends the command.

    A signal that the command was started to outlive (`nohup`) does not end it. Raises: KeyboardInterrupt if it was
    ended.
    """
    import asyncio
    import signal

    task, loop = asyncio.ensure_future(paying), asyncio.get_running_loop()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            # By the loop: an exception out of a handler may come amid any line, where nothing is told.
            loop.add_signal_handler(ending, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _read_wallet_key(path: Path) -> WalletKey:
    from tollkeeper.core.keys.wallet_keys import parse_wallet_key
    from tollkeeper.settings import read_secret_file

    try:
        return parse_wallet_key(read_secret_file(path))
    except ValueError as error:
        raise typer.BadParameter(f"--key-file: {error}") from None


def _check_url(name: str, text: str) -> None:
    """Raises: BadParameter for what no request can be sent to."""
    if not text.lower().startswith(("http://", "https://")):
        raise typer.BadParameter(f"{name}: {text} does not begin with http:// or https://")


def _header_of(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise ValueError("--header: a header is written as 'Name: value'")
    if not line.isprintable():
        raise ValueError("--header: a header has no control characters")
    return name.strip(), value.strip()
