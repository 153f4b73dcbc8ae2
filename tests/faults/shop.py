"""Gateway and hub as one configured program, and callers who present a payment until they know."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running, configured, running
from tests.faults.aftermath import Site
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

PAYEE: Final = "0x" + "77" * 20


class Shop:
    """The configured program."""

    def __init__(self, home: Path, chain: ChainUnderTest, node_url: str) -> None:
        self.chain = chain
        self._port = 0
        self.config = configured(home, node_url, payment_address=PAYEE)
        self.environ = {
            "TOLLKEEPER_SIGNER_KEY": derive_wallets().relayer.private_key_hex,
            "TOLLKEEPER_ALLOW_PRIVATE_TARGETS": "true",
            "TOLLKEEPER_ANONYMOUS_PAYGATES": "manage",
            "TOLLKEEPER_ASSET_NAME_BASE_SEPOLIA": chain.token_name,
        }

    @property
    def database(self) -> Path:
        return next(self.config.parent.glob("data/*.db"))

    @property
    def site(self) -> Site:
        return Site(self.config, self.environ)

    def take_port(self) -> None:
        """Serves at one port from now on, which its login messages name, as our own clients want it."""
        self._port = free_port()
        self.environ["TOLLKEEPER_PUBLIC_URL"] = f"http://127.0.0.1:{self._port}"

    def serving(self, *, under: tuple[str, ...] = ()) -> Any:
        return running("serve", "--config", self.config, "--port", str(self._port), environ=self.environ, under=under)


def url_of(program: Running) -> str:
    event = program.wait_for_event("serving")
    url: str = event["url"]
    return url


async def present(buyer: Buyer, url: str, payment: str) -> Answer:
    """The payment, again and again while the program says that it does not know yet."""
    for _ in range(30):
        answer = await buyer.call(url, payment)
        if answer.status != 503:
            return answer
        assert "accepts" not in answer.json()
        await asyncio.sleep(0.3)
    raise AssertionError(answer.body)
