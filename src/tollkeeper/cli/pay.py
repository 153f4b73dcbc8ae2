"""`tollkeeper pay`: what a buyer types, what the call cost, and the exit code that says so."""
# ruff: noqa: PLC0415 - a command imports what it runs, so that the others start at once

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tollkeeper.cli.options import KeyFile, check_url, read_wallet_key
from tollkeeper.cli.output import EXIT_CHARGED, EXIT_FAILED, EXIT_UNKNOWN, refuse, tell, write

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tollkeeper.client.buying import BuyersCall, WantedCall
    from tollkeeper.client.paid_answer import PaidAnswer
    from tollkeeper.core.json_types import JsonObject

_AGAIN: Final = "Run the same command again: it sends this payment and signs no other one."
_COST: Final = {
    "nothing": "You were not charged.",
    "payment": "You were charged {amount} USDC.",
    "credit": "You were charged one credit, of those bought before.",
    "notYet": f"You were not charged yet, and the payment can still be carried out until it ends. {_AGAIN}",
    "elsewhere": "You were charged {amount} USDC for another call: this payment was used before.",
    "unknown": f"It is not known whether you were charged {{amount}} USDC; the payment is kept. {_AGAIN}",
    "unknownCredit": "It is not known whether a credit was used.",
}
_CODES: Final = {
    "payment": EXIT_CHARGED,
    "credit": EXIT_CHARGED,
    "elsewhere": EXIT_CHARGED,
    "notYet": EXIT_UNKNOWN,
    "unknown": EXIT_UNKNOWN,
}


def pay_command(  # noqa: PLR0913 - one for each option
    *,
    url: Annotated[str, typer.Argument(help="The link of a PayGate, or of any x402 server.")],
    most: Annotated[str, typer.Option("--max", help="The most that this call may cost, in USDC.")] = "0.10",
    most_per_day: Annotated[
        str, typer.Option("--max-per-day", help="The most that the wallet pays in 24 hours on a network, in USDC.")
    ] = "5.00",
    key_file: KeyFile = None,
    test_wallet: Annotated[bool, typer.Option("--test-wallet", help="Pay with the sandbox's public wallets.")] = False,
    network: Annotated[str | None, typer.Option(help="Where to pay; else where the link asks first.")] = None,
    rpc_url: Annotated[str | None, typer.Option("--rpc-url", help="A node of the network; on Solana only.")] = None,
    method: Annotated[str | None, typer.Option(help="GET, or POST where there is --data, unless named.")] = None,
    data: Annotated[str | None, typer.Option(help="The body of the call; @FILE reads one.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="A header, as 'Name: value'; may be repeated.")] = None,
    credit_token: Annotated[str | None, typer.Option(help="Spend credits of this X-Credit-Token first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON, with the body in it.")] = False,
) -> None:
    """Call a link, pay what it asks in USDC up to a limit, and print the answer.

    Bought credits are kept on this machine and spent before anything is paid again. The answer's body goes to standard
    output, everything else to standard error. Exits with 0 if the call was served. Else it exits with 1 if nothing was
    charged, 4 if something was, 5 if that is not known.

    Example: tollkeeper pay http://127.0.0.1:8402/weather --test-wallet --max 0.05
    """
    import asyncio

    from tollkeeper.client.buying import BuyersCall, WantedCall
    from tollkeeper.client.requests import RefusedError
    from tollkeeper.core.api.errors import ApiError
    from tollkeeper.core.configuration import parse_network
    from tollkeeper.core.usdc import parse_usdc
    from tollkeeper.sandbox.wallets import buyer_keys

    if (key_file is None) != test_wallet:
        raise typer.BadParameter("give either --key-file or --test-wallet")
    if credit_token is not None and not credit_token.strip():  # of a variable that is not set: it would be paid anew
        raise typer.BadParameter("--credit-token: it is empty")
    check_url("the link", url)
    try:
        chosen = None if network is None else parse_network(network)
    except ValueError as error:
        raise typer.BadParameter(f"--network: {error}") from None
    try:
        limits = parse_usdc(most, field="--max"), parse_usdc(most_per_day, field="--max-per-day")
    except ApiError as error:
        raise typer.BadParameter(error.message) from None
    body, headers = _body_of(data), _headers_of(header or [])
    if body is not None and "content-type" not in {name.lower() for name in headers}:
        headers["Content-Type"] = _type_of(body)
    keys = buyer_keys() if key_file is None else (read_wallet_key(key_file),)
    method = method or ("GET" if body is None else "POST")
    wanted = WantedCall(url, keys, *limits, chosen, rpc_url, method, body, headers, credit_token)
    try:
        call = BuyersCall(wanted, partial(tell, err=True))
    except RefusedError as error:
        refuse(f"{error}. {_COST['nothing']}", code=EXIT_FAILED)
    try:
        answer = asyncio.run(_until_ended(call.run()))
    except RefusedError as error:
        if as_json:
            tell(json.dumps({"served": False, "charge": call.charge, "refused": str(error)}))
        refuse(f"{error}.", _cost_of(call), code=_CODES.get(call.charge, EXIT_FAILED))
    except KeyboardInterrupt:
        tell(_cost_of(call), err=True)
        raise
    _show(wanted, call, answer, as_json=as_json)


def _show(wanted: WantedCall, call: BuyersCall, answer: PaidAnswer, *, as_json: bool) -> None:
    """Print an answer and what it cost, and end the command with the exit code of both."""
    is_served = answer.status < 400
    # Before the body, which may find no room: the token is told by no other answer.
    tell(f"status {answer.status}", err=True)
    for name, value in answer.told:
        tell(f"{name} {value}", err=True)
    if not is_served:
        tell(_cost_of(call), err=True)
    shown = (json.dumps(_as_json(wanted, call, answer)) + "\n").encode() if as_json else answer.body
    if (problem := write(shown)) is not None:
        refuse(
            f"the answer's body was not printed: {problem}", _cost_of(call), code=_CODES.get(call.charge, EXIT_FAILED)
        )
    sys.exit(0 if is_served else _CODES.get(call.charge, EXIT_FAILED))


def _cost_of(call: BuyersCall) -> str:
    from tollkeeper.core.usdc import format_usdc

    is_credit = call.charge == "unknown" and not call.amount_micro
    return _COST["unknownCredit" if is_credit else call.charge].format(amount=format_usdc(call.amount_micro))


def _as_json(wanted: WantedCall, call: BuyersCall, answer: PaidAnswer) -> JsonObject:
    import base64

    from tollkeeper.core.usdc import format_usdc

    receipt = answer.receipt
    try:
        body = {"body": answer.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyBase64": base64.b64encode(answer.body).decode()}
    return {
        "url": wanted.url,
        "status": answer.status,
        "served": answer.status < 400,
        "charge": call.charge,
        "paid": format_usdc(call.amount_micro) if call.charge == "payment" else "0",
        **{name: receipt.get(name) for name in ("transaction", "network", "payer")},
        "creditsLeft": answer.credits_left,
        "creditToken": answer.credit_token,
        "refused": answer.reason or None,
        "contentType": answer.headers.get("content-type"),
        **body,
    }


async def _until_ended(paying: Coroutine[Any, Any, PaidAnswer]) -> PaidAnswer:
    """Run the payment, and tell what became of it even if somebody ends the command.

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


def _body_of(data: str | None) -> bytes | None:
    if data is None or not data.startswith("@"):
        return None if data is None else data.encode()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"--data: {error.filename} cannot be read ({error.strerror})") from None


def _type_of(body: bytes) -> str:
    """Return the content type of a body that has none by its user."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "text/plain; charset=utf-8"
    return "application/json"


def _headers_of(lines: list[str]) -> dict[str, str]:
    from tollkeeper.client.buying import PAYMENT_HEADERS

    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise typer.BadParameter("--header: a header is written as 'Name: value'")
        if not line.isprintable():
            raise typer.BadParameter("--header: a header has no control characters")
        if name.strip().lower() in PAYMENT_HEADERS:
            raise typer.BadParameter(f"--header: {name.strip()} is this command's own; it keeps what it signed")
        headers[name.strip()] = value.strip()
    return headers
