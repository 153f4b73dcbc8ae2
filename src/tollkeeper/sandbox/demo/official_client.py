"""Unmodified official clients of both generations as the demo's buyers, from PyPI and from npm.

They live beside a source checkout only: `tests/interop/setup` builds an environment for each, drivers there speak JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Final

from tollkeeper.core.json_types import JsonObject

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


async def buy_in_version_2(url: str, private_key: str, calls: int) -> list[JsonObject]:
    """The answers to so many GETs of today's client, made as its quick start makes it. Raises: ValueError."""
    command = (str(TODAY / "bin" / "python"), str(_DRIVERS / "pay_py_v2.py"))
    return await _drive_today(command, TODAY, {"url": url, "privateKey": private_key}, calls)


async def buy_in_version_2_on_solana(url: str, secret_key: str, rpc_url: str, calls: int) -> list[JsonObject]:
    """The same of today's client for Solana, which asks the node at `rpc_url`. Raises: ValueError."""
    command = (_node() or "node", str(_DRIVERS / "pay_fetch_v2.mjs"))
    order = {"url": url, "privateKey": secret_key, "rpcUrl": rpc_url}
    return await _drive_today(command, ON_SOLANA, order, calls)


async def _drive_today(command: tuple[str, ...], directory: Path, order: JsonObject, calls: int) -> list[JsonObject]:
    answer = await _drive(command, directory, {**order, "versions": "2", "calls": [{}] * calls})
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
