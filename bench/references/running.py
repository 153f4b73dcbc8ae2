"""Starts a reference server for as long as a block lasts. Used by the benchmarks, in the project's own environment.

The Python ones run in an environment of the interoperability tests. The npm one is installed at its first use from its
lock, under .cache.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from bench.processes import started

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bench.processes import Running

HERE: Final = pathlib.Path(__file__).resolve().parent
CACHE: Final = HERE.parent.parent / ".cache"
PYTHON: Final = CACHE / "interop" / "x402-2.25.0" / "bin" / "python"
PYTHON_SVM: Final = CACHE / "interop" / "x402-2.25.0-svm" / "bin" / "python"


def official_facilitator(rpc_url: str, private_key: str) -> AbstractContextManager[Running]:
    """An official facilitator that settles on this node with this key (which needs gas there)."""
    command = (str(PYTHON), str(HERE / "facilitator.py"))
    return started(*command, FACILITATOR_RPC_URL=rpc_url, FACILITATOR_PRIVATE_KEY=private_key)


def official_solana_facilitator(rpc_url: str, secret_key: str) -> AbstractContextManager[Running]:
    """An official facilitator that settles on this Solana node, where the key pays the fees."""
    command = (str(PYTHON_SVM), str(HERE / "solana_facilitator.py"))
    return started(*command, FACILITATOR_RPC_URL=rpc_url, FACILITATOR_PRIVATE_KEY=secret_key)


def official_paid_server(facilitator_url: str, pay_to: str, token_name: str) -> AbstractContextManager[Running]:
    """An official FastAPI server: GET /data costs 0.01 USDC on base-sepolia, GET /free nothing."""
    command = (str(PYTHON), str(HERE / "paid_server.py"))
    return started(*command, FACILITATOR_URL=facilitator_url, PAY_TO=pay_to, TOKEN_NAME=token_name)


def official_express_server(facilitator_url: str, pay_to: str, token_name: str) -> AbstractContextManager[Running]:
    """An official Express server: GET /data costs 0.01 USDC on base-sepolia."""
    command = ("node", str(HERE / "paid_server.mjs"))
    variables = {"FACILITATOR_URL": facilitator_url, "PAY_TO": pay_to, "TOKEN_NAME": token_name}
    return started(*command, **variables, PACKAGES=str(_npm_packages()), NODE_ENV="production")


def _npm_packages() -> pathlib.Path:
    """The directory with the lock's packages, which are installed where they are not there. Runs nothing of them."""
    lock = (HERE / "npm" / "package-lock.json").read_bytes()
    directory = CACHE / "bench-npm" / hashlib.sha256(lock).hexdigest()[:16]
    if not directory.exists():
        making = directory.with_suffix(f".{os.getpid()}")
        making.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(HERE / "npm" / name, making / name)
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        install = ("npm", "ci", "--ignore-scripts", "--omit=dev", "--omit=peer", "--omit=optional", *quiet)
        subprocess.run(install, cwd=making, check=True, stdout=subprocess.DEVNULL)
        making.rename(directory)
    return directory
