"""How many files of the program a warm call runs through: `python -m bench.files_of_a_call` prints them by kind.

Each kind is called several times on one connection of a running gateway, whose facilitator is instant; counted are
the files in which a function was called each time, so that what runs beside the calls by chance is left out.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bench.gateway import gateway
from bench.scene import scene
from bench.variety import below
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from pathlib import Path

CALLS: Final = 6
WARM_CALLS: Final = 3
AIMS: Final = {"unpaid": 8, "held credit": 12, "first purchase": 18}
_TURN_SECONDS: Final = 0.05  # for the signal, and for what follows an answer
_WAIT_SECONDS: Final = 30


class Watched:
    """The files of calls at one gate, on one connection."""

    def __init__(self, pid: int, gate_url: str, told: Path) -> None:
        parts = urlsplit(gate_url)
        self._pid, self._path, self._told = pid, parts.path, told
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=_WAIT_SECONDS)
        self._number = 0

    def call(self, payment: str | None, status: int) -> None:
        """Make one call. Raises: RuntimeError for another status."""
        self._number += 1
        headers = {} if payment is None else {"X-Payment": payment}
        self._connection.request("GET", self._path + below(self._number), headers=headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != status:
            raise RuntimeError(f"{answer.status} in place of {status}: {body[:500]!r}")

    def files(self, payments: list[str | None], status: int) -> set[str]:
        """Return the files of each of these calls, but for the first ones, which warm up."""
        seen: list[set[str]] = []
        for number, payment in enumerate(payments):
            self._told.unlink(missing_ok=True)
            self._turn()
            self.call(payment, status)
            self._turn()
            deadline = time.monotonic() + _WAIT_SECONDS
            while not self._told.exists() and time.monotonic() < deadline:
                time.sleep(_TURN_SECONDS)
            if number >= WARM_CALLS:
                seen.append(set(self._told.read_text().splitlines()))
        return set.intersection(*seen)

    def _turn(self) -> None:
        time.sleep(_TURN_SECONDS)
        os.kill(self._pid, signal.SIGUSR1)
        time.sleep(_TURN_SECONDS)


def main() -> int:
    """Print the files of each kind of call."""
    program = (sys.executable, "-m", "bench.servers.traced")
    count = WARM_CALLS + CALLS
    with scene() as running:
        told = running.directory / "files"
        hub = f"{running.target}/v1"
        with gateway(
            running.directory / "traced",
            "http://127.0.0.1:1",
            None,
            role="gateway",
            program=program,
            TOLLKEEPER_HUB_URL=hub,
            TRACED_FILES=str(told),
        ) as own:
            gate = own.gate(running.target + "/small", allowSubpaths=True)
            watched = Watched(own.pid, gate, told)
            new = _signed(own.challenge(gate).json(), count)
            (held,) = own.buy(gate, 1)
            calls: dict[str, tuple[list[str | None], int]] = {
                "unpaid": ([None] * count, 402),
                "held credit": ([held] * count, 200),
                "first purchase": ([*new], 200),
            }
            for kind, (payments, status) in calls.items():
                files = watched.files(payments, status)
                print(f"{kind}: {len(files)} files (aim {AIMS[kind]})")
                print("".join(f"    {name}\n" for name in sorted(files)), end="")
    return 0


def _signed(terms: dict[str, object], count: int) -> list[str]:
    """Return payments that nobody has seen."""

    async def sign() -> list[str]:
        async with Buyer(derive_wallets().buyer) as buyer:
            return [buyer.sign(terms) for _ in range(count)]

    return asyncio.run(sign())


if __name__ == "__main__":
    sys.exit(main())
