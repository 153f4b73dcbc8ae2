"""Unmodified official clients of both generations as the demo's buyers, from PyPI and from npm.

They live beside a source checkout only: `tests/interop/setup` builds an environment for each, drivers there speak JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.core.json_types import JsonObject
from tollkeeper.sandbox.demo.story import CITY, CREDITS, PRICE_MICRO, told_by_client
from tollkeeper.sandbox.target import forecast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.sandbox.demo.story import Story

_ROOT: Final = Path(__file__).resolve().parents[4]
_ENVIRONMENTS: Final = _ROOT / ".cache" / "interop"
_DRIVERS: Final = _ROOT / "tests" / "interop" / "drivers"
ENVIRONMENT: Final = _ENVIRONMENTS / "x402-1.0.0"
TODAY: Final = _ENVIRONMENTS / "x402-2.25.0"
ON_SOLANA: Final = _ENVIRONMENTS / "npm"
_TIMEOUT_SECONDS: Final = 120


def require_official_client() -> None:
    """Raises: ValueError where the client is not installed, with what to do."""
    if not all((one / "bin" / "python").exists() for one in (ENVIRONMENT, TODAY)) or not _DRIVERS.exists():
        names = f"{ENVIRONMENT.name} {TODAY.name}"
        raise ValueError(f"an official client is not there: run tests/interop/setup {names} in a source checkout")


def has_official_client_on_solana() -> bool:
    """Are the clients for Solana installed, and Node.js to run them?"""
    return (ON_SOLANA / "node_modules" / "x402-fetch").exists() and _node() is not None


def _node() -> str | None:
    return shutil.which(os.environ.get("NODE", "node"))


async def buy_officially(url: str, private_key: str) -> JsonObject:
    """The driver's answer to one GET: `status`, `body`, `headers`, `receipt`, `error`. Raises: ValueError."""
    command = (str(ENVIRONMENT / "bin" / "python"), str(_DRIVERS / "pay_py_v1.py"))
    return await _drive(command, ENVIRONMENT, {"url": url, "privateKey": private_key})


async def buy_officially_on_solana(url: str, secret_key: str, rpc_url: str) -> JsonObject:
    """The same of the client for Solana, which asks the node at `rpc_url`. Raises: ValueError."""
    command = (_node() or "node", str(_DRIVERS / "pay_fetch.mjs"))
    order = {"url": url, "privateKey": secret_key, "network": "solana-devnet", "rpcUrl": rpc_url}
    return await _drive(command, ON_SOLANA, order)


async def buy_in_version_2(private_key: str, url: str) -> list[JsonObject]:
    """The answers to the GETs of today's client, made as its quick start makes it. Raises: ValueError."""
    command = (str(TODAY / "bin" / "python"), str(_DRIVERS / "pay_py_v2.py"))
    return await _drive_today(command, TODAY, {"url": url, "privateKey": private_key})


async def buy_in_version_2_on_solana(secret_key: str, rpc_url: str, url: str) -> list[JsonObject]:
    """The same of today's client for Solana, which asks the node at `rpc_url`. Raises: ValueError."""
    command = (_node() or "node", str(_DRIVERS / "pay_fetch_v2.mjs"))
    order = {"url": url, "privateKey": secret_key, "rpcUrl": rpc_url}
    return await _drive_today(command, ON_SOLANA, order)


async def _drive_today(command: tuple[str, ...], directory: Path, order: JsonObject) -> list[JsonObject]:
    answer = await _drive(command, directory, {**order, "versions": "2", "calls": [{}] * CREDITS})
    answers: list[JsonObject] = answer["answers"]
    return answers


async def _drive(command: tuple[str, ...], directory: Path, order: JsonObject) -> JsonObject:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=directory
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(json.dumps(order).encode()), _TIMEOUT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    answer = json.loads(output or b"null")
    if not isinstance(answer, dict):
        raise ValueError("the official client's driver failed")  # noqa: TRY004 - the answer is wrong, not a Python type
    return answer


# The demo's last steps with official clients: today's buy in version 2, and call again on what they bought.


async def buy_today(story: Story, step: str, client: Callable[[str], Awaitable[list[JsonObject]]]) -> None:
    """Sell to one of today's clients, which calls on what it bought. Raises: StepFailed."""
    tell = story.narrator
    with tell.step(step):
        url = f"{await story.create_gate('Weather for today', CREDITS)}?city={CITY}"
        before = await story.player.balances()
        # Every call is served; the second and third spend credits of the first one's purchase.
        for left, told in zip(reversed(range(CREDITS)), await client(url), strict=True):
            answer = told_by_client(tell, told)
            tell.check("status", expected=200, actual=answer.status)
            tell.check("the API's own answer", expected=forecast(CITY), actual=answer.json())
            tell.check("credits left", expected=str(left), actual=answer.headers.get("x-credits-remaining"))
        after = await story.player.balances()
        tell.check("the buyer paid, in micro-units", expected=PRICE_MICRO, actual=before[0] - after[0])
        tell.check("the owner was paid, in micro-units", expected=PRICE_MICRO, actual=after[1] - before[1])
