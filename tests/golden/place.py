"""Where the exchanges of a recording are made: the running program, wallets that are the same in each run, gates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from solders.keypair import Keypair

from tests.golden.recording import Recording, Said, recorded
from tests.specification.client import Json, Wallet
from tests.specification.program import bearer_header
from tests.specification.solana_world import SolanaWallet
from tests.specification.world import World
from tollkeeper.sandbox.wallets import derive_wallets, fee_payers_of

PAYEE: Final = "0x7777777777777777777777777777777777777777"
# Which of them pays is another one from hour to hour.
FEE_PAYERS: Final = {one.address: "<fee payer>" for one in fee_payers_of(derive_wallets().relayer.private_key)}
GATES: Final = "/api/v1/paygates"


def wallet(name: str) -> Wallet:
    """A wallet of this name, the same in each run."""
    return Wallet("0x" + hashlib.sha256(f"golden {name}".encode()).hexdigest())


def solana_wallet(name: str) -> SolanaWallet:
    """The same on Solana."""
    return SolanaWallet(Keypair.from_seed(hashlib.sha256(f"golden {name}".encode()).digest()))


@dataclass(frozen=True, slots=True)
class Place:
    """The program, and the recording of one subject there."""

    world: World
    recording: Recording

    async def gate(self, slug: str, **fields: object) -> Json:
        """A gate at the target, paid to PAYEE, whose making is no part of the recording."""
        wanted = {"slug": slug, "paymentAddress": PAYEE, **fields}
        return await self.world.gate(**wanted)

    async def gateway(self, title: str, method: str, path: str, bearer: str | None = None, **given: Any) -> Said:
        """A request to the gateway."""
        headers = {**given.pop("headers", {}), **bearer_header(bearer)}
        return await self.recording.ask(title, method, self.world.gateway_url + path, headers, **given)

    async def hub(self, title: str, method: str, path: str, bearer: str | None = None, **given: Any) -> Said:
        """A request to the hub."""
        return await self.gateway(title, method, "/hub" + path, bearer, **given)

    async def call(self, title: str, gate: Json, paid: str | None = None, **given: Any) -> Said:
        """A call of the gate: a GET unless a method is given."""
        headers = {**given.pop("headers", {}), **({} if paid is None else {"X-Payment": paid})}
        url = gate["accessUrl"] + given.pop("below", "")
        return await self.recording.ask(title, given.pop("method", "GET"), url, headers, **given)

    async def access_token(self, who: Wallet | SolanaWallet, base_url: str | None = None) -> str:
        """Log the wallet in, at the gateway unless told otherwise, outside the recording."""
        token: str = (await self.world.login(who, base_url or self.world.gateway_url))["accessToken"]
        return token

    async def funded(self, name: str, value: int) -> Wallet:
        """The wallet of this name, with so much."""
        who = wallet(name)
        body = self.world.asking(value, recipient=who.address)
        answer = await self.world.settle({**body, "confirm": True})
        assert answer.body["status"] == "success", answer.content
        return who


@contextmanager
def recorded_at(world: World, subject: str) -> Iterator[Place]:
    """The recording of a subject at this program."""
    program, node = urlsplit(world.gateway_url).netloc, urlsplit(world.rpc_url).netloc
    names = {program: "gateway.example", node: "node.example", urlsplit(world.target.url).netloc: "target.example"}
    with recorded(subject, names | FEE_PAYERS) as recording:
        yield Place(world, recording)
