"""The unmodified official client (PyPI x402 1.0.0) as the demo's buyer, from an environment of its own.

It lives beside a source checkout only: `tests/interop/setup` builds the environment, a driver there speaks JSON.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[3]
ENVIRONMENT: Final = _ROOT / ".cache" / "interop" / "x402-1.0.0"
DRIVER: Final = _ROOT / "tests" / "interop" / "drivers" / "pay_py_v1.py"
_TIMEOUT_SECONDS: Final = 120


def require_official_client() -> None:
    """Raises: ValueError where the client is not installed, with what to do."""
    if not (ENVIRONMENT / "bin" / "python").exists() or not DRIVER.exists():
        raise ValueError("the official client is not there: run tests/interop/setup x402-1.0.0 in a source checkout")


async def buy_officially(url: str, private_key: str) -> dict[str, Any]:
    """The driver's answer to one GET: `status`, `body`, `headers`, `receipt`, `error`. Raises: ValueError."""
    process = await asyncio.create_subprocess_exec(
        str(ENVIRONMENT / "bin" / "python"),
        str(DRIVER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ENVIRONMENT,
    )
    request = json.dumps({"url": url, "privateKey": private_key}).encode()
    try:
        output, _ = await asyncio.wait_for(process.communicate(request), _TIMEOUT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    answer = json.loads(output or b"null")
    if not isinstance(answer, dict):
        raise ValueError("the official client's driver failed")  # noqa: TRY004 - the answer is wrong, not a Python type
    return answer
