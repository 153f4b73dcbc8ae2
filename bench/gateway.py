"""`tollkeeper serve` as a benchmark measures it, on one core, with gates, and purchases that hold credits.

The configuration is what `tollkeeper init` writes, with what a benchmark needs besides: targets on this machine, the
sandbox's chain as the node, and the sandbox's funded relayer as the signer. Its log shows warnings and worse.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.measuring import cpu_seconds, pinned, say
from bench.start import stopping, wait_until_healthy
from tests.ports import free_port
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND: Final = (sys.executable, "-m", "tollkeeper.cli")
CREDITS: Final = 100_000_000
PRICE: Final = "0.000001"
BUYING_AT_ONCE: Final = 16
# The gateway looks 4, 12, 36 and 108 seconds after a sale whether its payment is still there (`core.purchases`).
REST_SECONDS: Final = 40


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: its first process, and where it is."""

    pid: int
    url: str

    def gate(self, target_url: str, **fields: object) -> str:
        """Makes a gate. Returns its URL."""
        body = {"targetUrl": target_url, "price": PRICE, "credits": CREDITS, **fields}

        async def create() -> Answer:
            async with Buyer(derive_wallets().buyer) as buyer:
                return await buyer.ask("POST", f"{self.url}/api/v1/paygates", body=body)

        answer = asyncio.run(create())
        assert answer.status == 201, answer.body
        url: str = answer.json()["accessUrl"]
        return url

    def challenge(self, gate_url: str, method: str = "GET") -> Answer:
        """The 402."""

        async def ask() -> Answer:
            async with Buyer(derive_wallets().buyer) as buyer:
                return await buyer.ask(method, gate_url)

        answer = asyncio.run(ask())
        assert answer.status == 402, answer.body
        return answer

    def buy(self, gate_url: str, count: int, method: str = "GET") -> list[str]:
        """Makes that many purchases. Returns their `X-Payment` values, which hold credits from then on."""
        terms = self.challenge(gate_url, method).json()
        at_once = asyncio.Semaphore(BUYING_AT_ONCE)

        async def buy_one(buyer: Buyer) -> str:
            async with at_once:
                payment = buyer.sign(terms)  # which is good for a minute
                answer = await buyer.ask(method, gate_url, headers={"X-Payment": payment})
            assert answer.status == 200, answer.body
            return payment

        async def buy_all() -> list[str]:
            async with Buyer(derive_wallets().buyer) as buyer:
                return await asyncio.gather(*(buy_one(buyer) for _ in range(count)))

        return asyncio.run(buy_all())

    def rest(self) -> None:
        """Wait until young sales are looked at no more: what is measured then is calls alone."""
        say(f"{REST_SECONDS} seconds until the sales are older")
        time.sleep(REST_SECONDS)


@contextmanager
def gateway(
    directory: Path,
    rpc_url: str,
    core: int | None,
    *,
    role: str = "serve",
    program: tuple[str, ...] = COMMAND,
    **env: str,
) -> Iterator[Gateway]:
    """A gateway on `core`, or wherever there is room, until the block ends; `env` is added to its environment.

    Apart from a hub it has no node: what an instant facilitator settles is on no chain.
    """
    wallets = derive_wallets()
    port = free_port()
    init = [*COMMAND, "init", "--dir", str(directory), "--rpc-url", rpc_url, "--port", str(port)]
    subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
    if role == "gateway":
        written = directory / "tollkeeper.toml"
        written.write_text(written.read_text().replace("\nrpc_url =", "\n# rpc_url ="))
    (directory / "keys" / "signer.key").write_text(wallets.relayer.private_key_hex + "\n")
    environment = {
        **os.environ,
        "TOLLKEEPER_ALLOW_PRIVATE_TARGETS": "true",
        "TOLLKEEPER_DEFAULT_PAYMENT_ADDRESS": checksum_address(wallets.owner.address),
        "TOLLKEEPER_LOG_LEVEL": "warning",
        "TOLLKEEPER_METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
        **env,
    }
    command = [*program, role, "--config", str(directory / "tollkeeper.toml")]
    with nullcontext() if core is None else pinned(core):
        process = subprocess.Popen(command, env=environment)
    with stopping(process):
        wait_until_healthy(port, process)
        yield Gateway(process.pid, f"http://127.0.0.1:{port}")


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            pids += family(int(child))
    return pids


def family_cpu_seconds(pid: int) -> float:
    """Processor time of a process and its descendants."""
    return sum(cpu_seconds(one) for one in family(pid))
