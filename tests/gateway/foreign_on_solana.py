"""A facilitator on Solana that is not ours, and gateways of that network whose facilitator it is."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from aiohttp import web
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from tests.gateway.abroad import SalesAbroad, Site
from tests.gateway.foreign_facilitator import Foreign, Settling, failure, honest, success
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import NETWORK, SolanaMarket
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, LAMPORTS_PER_SOL, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets

EXPIRED_SLOTS = RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 2


@dataclass(slots=True, kw_only=True)
class ForeignOnSolana(Foreign):
    """It pays fees with a key of its own; `lists` says whether it advertises its signers beside the fee payer."""

    NETWORK: ClassVar[str] = NETWORK
    NOBODYS: ClassVar[str] = str(Keypair.from_seed(b"\x31" * 32).sign_message(b"no transaction"))

    node: SolanaNode
    fee_payer: Keypair
    lists: bool = True

    def supported(self) -> dict[str, Any]:
        fee_payer = str(self.fee_payer.pubkey())
        signers = {"solana:*": [fee_payer]} if self.lists else {}
        return {"kinds": self.kinds(NETWORK, {"feePayer": fee_payer}), "extensions": [], "signers": signers}

    def read(self, payload: dict[str, Any]) -> bytes:
        return base64.b64decode(payload["transaction"])

    def sign(self, raw: bytes, fee_payer: Keypair | None = None) -> VersionedTransaction:
        """The transaction with the fee payer's signature."""
        transaction = VersionedTransaction.from_bytes(raw)
        message = raw[1 + 64 * len(transaction.signatures) :]
        ours = (fee_payer or self.fee_payer).sign_message(message)
        return VersionedTransaction.populate(transaction.message, [ours, *transaction.signatures[1:]])

    async def hand_over(self, payload: bytes) -> str:
        return self.node.chain.send(bytes(self.sign(payload)), skips_preflight=True)

    async def send(self, payload: bytes) -> str:
        return await self.hand_over(payload)


async def names_no_signature(foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
    """Never sends, and names what can be no transaction."""
    return success(foreign, "0x" + "ab" * 32)


async def names_what_was_paid_before(foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
    """Sends nothing, and names a transaction of the same payer to the same seller, of the same amount."""
    return success(foreign, next(iter(foreign.node.chain.executed)))


async def sends_and_names_another(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and names that one all the same."""
    await foreign.send(raw)
    return await names_what_was_paid_before(foreign, raw)


async def expiry_after_sending(foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
    """Sends, and says that the payment is too old."""
    await foreign.send(raw)
    return failure("settle_exact_svm_block_height_exceeded")


@asynccontextmanager
async def run_foreign_on_solana(
    node: SolanaNode, settling: Settling = honest, *, lists: bool = True
) -> AsyncIterator[ForeignOnSolana]:
    """The facilitator on a free port, with a fee payer that has lamports."""
    foreign = ForeignOnSolana(node=node, fee_payer=Keypair.from_seed(b"\x32" * 32), settling=settling, lists=lists)
    node.chain.airdrop(str(foreign.fee_payer.pubkey()), LAMPORTS_PER_SOL)
    async with foreign.running():
        yield foreign


class SalesOnSolana(SalesAbroad):
    """Of a gateway on Solana."""

    __slots__ = ()

    site: SiteOnSolana

    @property
    def market(self) -> SolanaMarket:
        """The same gateway, to make payments by hand."""
        return SolanaMarket(self.url, self.site.rpc_url, derive_solana_wallets(), self.site.target, self.buyer)

    async def payment(self, gate: dict[str, Any]) -> str:
        return await self.market.payment(await self.market.requirements(gate))


class SiteOnSolana(Site):
    """On an embedded chain."""

    SALES = SalesOnSolana
    EXPIRED = "settle_exact_svm_block_height_exceeded"

    foreign: ForeignOnSolana

    @property
    def rpc_url(self) -> str:
        return self.foreign.node.url

    @property
    def pay_to(self) -> str:
        return derive_solana_wallets().owner.address

    def received_micro(self) -> int:
        chain = self.foreign.node.chain
        return chain.token_balance(chain.open_account(self.pay_to))

    def last_transaction(self) -> str:
        return list(self.foreign.node.chain.executed)[-1]

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        self.foreign.node.chain.holds = True
        yield
        self.foreign.node.chain.release()

    def age(self) -> None:
        """Too old for the newest block, and not yet for the last final one."""
        self.foreign.node.chain.next_slot(RECENT_SLOTS + 1)

    def expire(self) -> None:
        self.foreign.node.chain.next_slot(EXPIRED_SLOTS)

    def finalise(self) -> None:
        self.foreign.node.chain.next_slot(FINAL_SLOTS)


@asynccontextmanager
async def site_on_solana(
    folder: Path, node: SolanaNode, target: RecordingTarget, settling: Settling = honest, *, lists: bool = True
) -> AsyncIterator[SiteOnSolana]:
    """The facilitator, and a place for its gateway."""
    async with run_foreign_on_solana(node, settling, lists=lists) as foreign:
        yield SiteOnSolana(foreign, folder / "gateway.db", target)
