"""`tollkeeper sandbox`: runs the sandbox until a signal, and tells its user or a program how to use it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from tollkeeper.client.payments import authorization_for, payment_for
from tollkeeper.client.requests import reason_of
from tollkeeper.core import configuration as text_of
from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.keys.keyring import parse_private_key
from tollkeeper.core.printable import printable
from tollkeeper.logs import configure_logs
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.engine import EngineName
from tollkeeper.sandbox.stack import SOLANA, Options, Sandbox, open_sandbox
from tollkeeper.serving import StartError
from tollkeeper.serving.http.server import run, until_signalled
from tollkeeper.settings.sources import typed_command, wants_colours

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

ENGINES: Final = {"auto": None, "pyrevm": EngineName.REVM, "pyevm": EngineName.PYEVM}
SLUG: Final = "weather"
PRICE: Final = "0.01"
CREDITS: Final = 3
_CURL_SECONDS: Final = 24 * 3600


def parse_engine(text: str) -> EngineName | None:
    """The engine of that name; None for the fastest that is there. Raises: ValueError."""
    if text not in ENGINES:
        raise ValueError(f"--engine is none of {', '.join(ENGINES)}")
    return ENGINES[text]


def parse_options(
    port: int, data_dir: Path | None, engine: str, rpc_url: str | None, relayer_key: str | None, log_level: str
) -> Options:
    """The options as they were typed. Raises: ValueError naming the one that is wrong."""

    def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None

    return Options(
        port=port,
        data_dir=data_dir,
        engine=parse_engine(engine),
        rpc_url=None if rpc_url is None else parsed("--rpc-url", text_of.parse_rpc_url, rpc_url),
        relayer_key=None if relayer_key is None else parsed("--relayer-key", parse_private_key, relayer_key),
        log_level=parsed("--log-level", text_of.choice(LogLevel), log_level),
    )


def run_sandbox(options: Options, *, print_json: bool) -> None:
    """Run until a signal. With `print_json` one line on standard output says when and where it is ready.

    Raises: StartError, StorageError.
    """
    configure_logs(options.log_level, LogFormat.AUTO, colours=wants_colours(sys.stderr))

    async def serve(stop: asyncio.Event) -> None:
        async with open_sandbox(options) as sandbox:
            if print_json:
                say(json.dumps(sandbox.as_json()))
            else:
                say(await welcome(sandbox))
            await stop.wait()

    run(until_signalled(serve))


def say(text: str) -> None:
    """Write to standard output at once: whoever waits for the line may read a pipe."""
    sys.stdout.write(printable(text, "\n") + "\n")
    sys.stdout.flush()


async def welcome(sandbox: Sandbox) -> str:
    """Make a first gate and a payment for it. Return what the user reads. Raises: StartError."""
    body = {
        "slug": SLUG,
        "targetUrl": sandbox.target_url,
        "price": PRICE,
        "credits": CREDITS,
        "title": "Weather",
        "description": "A made-up forecast for a city",
        "accepts": [{"network": SOLANA.name, "paymentAddress": sandbox.solana_wallets.owner.address}],
    }
    async with Buyer(sandbox.wallets.buyer) as buyer:
        created = await buyer.ask("POST", f"{sandbox.gateway_url}/api/v1/paygates", body=body)
        url = created.json().get("accessUrl", f"{sandbox.gateway_url}/{SLUG}")  # there already: an earlier run's
        challenge = await buyer.ask("GET", url)
    asked = challenge.json()
    if "accepts" not in asked:  # only another's node can fail to serve
        raise StartError(f"{sandbox.rpc_url} (--rpc-url) does not serve: {reason_of(asked)}")
    requirements = asked["accepts"][0]
    now_seconds = int(time.time())
    authorization = replace(
        authorization_for(requirements, sandbox.wallets.buyer.address, os.urandom(32), now_seconds),
        valid_before=now_seconds + _CURL_SECONDS,
    )
    payment = payment_for(requirements, authorization, sandbox.wallets.buyer.private_key)
    wallets, on_solana = sandbox.wallets, sandbox.solana_wallets
    return f"""\
Tollkeeper sandbox: play money, public keys, this machine only. Gates may point at private addresses here.

  gateway  {sandbox.gateway_url}
  sell     {sandbox.gateway_url}/app   the dashboard; there you can log in as the test owner
  hub      {sandbox.hub_url}
  target   {sandbox.target_url}
  PayGate  {url}   {PRICE} USDC buys {CREDITS} calls, on either network

  base-sepolia   {sandbox.rpc_url}   play USDC at {sandbox.token}
    buyer        {checksum_address(wallets.buyer.address)}
    key          {wallets.buyer.private_key_hex}
    seller       {sandbox.pay_to}
  solana-devnet  {sandbox.solana_url}   play USDC at {SOLANA.usdc.address}
    buyer        {on_solana.buyer.address}
    key          {on_solana.buyer.secret_key}
    seller       {on_solana.owner.address}

See what a call costs:

  curl -i '{url}?city=Oslo'

Pay for {CREDITS} calls, and use them (the same line, {CREDITS} times; then it is a 402 again):

  curl -i '{url}?city=Oslo' -H 'X-Payment: {payment}'

Pay by a wallet, here the test buyer's, on either chain (what is signed on Solana holds for a minute only):

  {typed_command()} pay '{url}?city=Oslo' --test-wallet
  {typed_command()} pay '{url}?city=Oslo' --test-wallet --network {SOLANA.name} --rpc-url {sandbox.solana_url}

Stop it with Ctrl-C."""
