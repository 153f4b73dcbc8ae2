"""The official clients that the interop tests run, each unmodified and in its own environment (see `setup`).

A driver is a script beside this file, run by the interpreter of one environment; drivers/*.py say what goes in and out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Final

HERE: Final = pathlib.Path(__file__).resolve().parent
CACHE: Final = HERE.parent.parent / ".cache" / "interop"
DRIVER_TIMEOUT_SECONDS: Final = 300

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Driver:
    """A script of drivers/, the environment that it runs in, and what it is always asked besides."""

    environment: str
    script: str
    always: tuple[tuple[str, str], ...] = ()

    def run(self, request: Json) -> Json:
        """The driver's answer. Raises CalledProcessError when the driver itself, not its client, breaks."""
        directory = CACHE / self.environment
        script = str(HERE / "drivers" / self.script)
        if self.environment == "npm":
            command = [os.environ.get("NODE", "node"), script]
        else:
            command = [str(directory / "bin" / "python"), script]
        finished = subprocess.run(
            command,
            input=json.dumps({**request, **dict(self.always)}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=directory,
            timeout=DRIVER_TIMEOUT_SECONDS,
        )
        answer: Json = json.loads(finished.stdout)
        return answer


# Yesterday's clients, which know version 1 alone.
VERSION_1: Final = {
    "x402-1.0.0-httpx": Driver("x402-1.0.0", "pay_py_v1.py", (("mode", "httpx"),)),
    "x402-1.0.0-requests": Driver("x402-1.0.0", "pay_py_v1.py", (("mode", "requests"),)),
    "x402-fetch-1.2.0": Driver("npm", "pay_fetch.mjs"),
    "x402-axios-0.7.2": Driver("npm", "pay_axios.mjs"),
}
# Today's as their packages' helpers make them: they know version 2, and version 1 beside it.
BOTH_VERSIONS: Final = {
    "x402-2.25.0-httpx": Driver("x402-2.25.0", "pay_py_v2.py"),
    "x402-2.25.0-requests": Driver("x402-2.25.0", "pay_py_v2.py", (("mode", "requests"),)),
    "@x402/fetch-2.27.0": Driver("npm", "pay_fetch_v2.mjs"),
    "@x402/axios-2.11.0": Driver("npm", "pay_axios_v2.mjs"),
}
# Today's with the schemes of version 2 alone, as their quick starts make them.
VERSION_2: Final = {
    f"{name}-v2": dataclasses.replace(driver, always=(*driver.always, ("versions", "2")))
    for name, driver in BOTH_VERSIONS.items()
}
PAYING_CLIENTS: Final = VERSION_1 | BOTH_VERSIONS | VERSION_2


def _on_solana(driver: Driver) -> Driver:
    return dataclasses.replace(driver, environment=driver.environment.replace("2.25.0", "2.25.0-svm"))


# Each needs `network` and `rpcUrl` besides. PyPI's of version 1 knows no Solana.
PAYING_CLIENTS_ON_SOLANA: Final = {
    name: _on_solana(driver) for name, driver in PAYING_CLIENTS.items() if driver.environment != "x402-1.0.0"
}

FACILITATOR_CLIENTS: Final = {
    "x402-1.0.0": Driver("x402-1.0.0", "facilitate_py_v1.py"),
    "x402-2.25.0": Driver("x402-2.25.0", "facilitate_py_v2.py"),
    "npm-x402-1.2.0": Driver("npm", "facilitate_v1.mjs"),
    "@x402/core-2.27.0": Driver("npm", "facilitate_v2.mjs"),
}

WITHOUT_SUPPORTED: Final = "x402-1.0.0"  # its FacilitatorClient has no call for /supported


# Those that know a v1 payment on Solana; the last one has nothing here that signs it.
FACILITATOR_CLIENTS_ON_SOLANA: Final = {
    "x402-2.25.0": Driver("x402-2.25.0-svm", "facilitate_py_v2.py"),
    "npm-x402-1.2.0": Driver("npm", "facilitate_v1.mjs"),
    "@x402/core-2.27.0": Driver("npm", "facilitate_v2.mjs"),
}
SIGNS_NOTHING_ON_SOLANA: Final = "@x402/core-2.27.0"


def ask_facilitator(client: str | Driver, hub_url: str, calls: list[Json]) -> list[Json]:
    """Each call's result in order: {"answer": what the client parsed} or {"error": {type, message}}."""
    driver = FACILITATOR_CLIENTS[client] if isinstance(client, str) else client
    results: list[Json] = driver.run({"url": hub_url, "calls": calls})["results"]
    return results


def sign(client: str | Driver, requirements: Json, private_keys: list[str], **more: str) -> list[Json]:
    """One v1 payment payload a key, made by the client's own signing code. No facilitator is asked."""
    calls = [{"operation": "sign", "privateKey": key, "requirements": requirements, **more} for key in private_keys]
    return [result["answer"] for result in ask_facilitator(client, "http://127.0.0.1:9", calls)]


def build_environments() -> None:
    """Build the environments that are missing or outdated; a moment when nothing is."""
    subprocess.run([sys.executable, str(HERE / "setup")], check=True, env={**os.environ, "PYTHON": sys.executable})
