"""Starts a reference server for as long as a block lasts. Used by the benchmarks, in the project's own environment."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = pathlib.Path(__file__).resolve().parent
PYTHON: Final = HERE.parent.parent / ".cache" / "interop" / "x402-2.25.0" / "bin" / "python"
STOP_TIMEOUT_SECONDS: Final = 10


@contextmanager
def official_facilitator(rpc_url: str, private_key: str) -> Iterator[str]:
    """The URL of an official facilitator that settles on this node with this key (which needs gas there)."""
    with reference("facilitator.py", FACILITATOR_RPC_URL=rpc_url, FACILITATOR_PRIVATE_KEY=private_key) as url:
        yield url


@contextmanager
def official_paid_server(facilitator_url: str, pay_to: str, token_name: str) -> Iterator[str]:
    """The URL of an official resource server: GET /data costs 0.01 USDC on base-sepolia, GET /free nothing."""
    with reference("paid_server.py", FACILITATOR_URL=facilitator_url, PAY_TO=pay_to, TOKEN_NAME=token_name) as url:
        yield url


@contextmanager
def reference(script: str, **variables: str) -> Iterator[str]:
    """The URL of one of this folder's servers. Raises RuntimeError when it does not start."""
    command = [str(PYTHON), str(HERE / script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **variables}) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                message = f"{script} did not start; is its environment built (tests/interop/setup x402-2.25.0)?"
                raise RuntimeError(message)
            url: str = json.loads(line)["url"]
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
