"""Unmodified official clients as the demo's buyers: PyPI x402 1.0.0, and on Solana npm x402-fetch 1.2.0.

They live beside a source checkout only: `tests/interop/setup` builds an environment for each, drivers there speak JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[4]
_ENVIRONMENTS: Final = _ROOT / ".cache" / "interop"
_DRIVERS: Final = _ROOT / "tests" / "interop" / "drivers"
ENVIRONMENT: Final = _ENVIRONMENTS / "x402-1.0.0"
ON_SOLANA: Final = _ENVIRONMENTS / "npm"
_TIMEOUT_SECONDS: Final = 120


def require_official_client() -> None:
    """Raises: ValueError where the client is not installed, with what to do."""
    if not (ENVIRONMENT / "bin" / "python").exists() or not _DRIVERS.exists():
        raise ValueError("the official client is not there: run tests/interop/setup x402-1.0.0 in a source checkout")


def has_official_client_on_solana() -> bool:
    """Is the client for Solana installed, and Node.js to run it?"""
    return (ON_SOLANA / "node_modules" / "x402-fetch").exists() and _node() is not None


def _node() -> str | None:
    return shutil.which(os.environ.get("NODE", "node"))


async def buy_officially(url: str, private_key: str) -> dict[str, Any]:
    """The driver's answer to one GET: `status`, `body`, `headers`, `receipt`, `error`. Raises: ValueError."""
    command = (str(ENVIRONMENT / "bin" / "python"), str(_DRIVERS / "pay_py_v1.py"))
    return await _drive(command, ENVIRONMENT, {"url": url, "privateKey": private_key})


async def buy_officially_on_solana(url: str, secret_key: str, rpc_url: str) -> dict[str, Any]:
    """The same of the client for Solana, which asks the node at `rpc_url`. Raises: ValueError."""
    command = (_node() or "node", str(_DRIVERS / "pay_fetch.mjs"))
    wish = {"url": url, "privateKey": secret_key, "network": "solana-devnet", "rpcUrl": rpc_url}
    return await _drive(command, ON_SOLANA, wish)


async def _drive(command: tuple[str, ...], directory: Path, wish: dict[str, str]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=directory
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(json.dumps(wish).encode()), _TIMEOUT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    answer = json.loads(output or b"null")
    if not isinstance(answer, dict):
        raise ValueError("the official client's driver failed")  # noqa: TRY004 - the answer is wrong, not a Python type
    return answer
