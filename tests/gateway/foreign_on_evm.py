"""A facilitator on an EVM network that is not ours, and gateways of EVM networks whose facilitator it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.abroad import SalesAbroad, Site
from tests.gateway.foreign_facilitator import Foreign, Settling, honest, success
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.evm.encoding import Authorization, transfer_calldata
from tollkeeper.core.x402.version1 import EvmPayload, parse_payload
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet

PAYEE = "0x" + "77" * 20
VALID_SECONDS = 3600  # longer than a busy machine needs


@dataclass(slots=True, kw_only=True)
class ForeignOnEvm(Foreign):
    """`signers` is what it advertises; `sender` is who really sends. `confirms`: it says that it waits for blocks.

    `also` are networks that it says it settles on.
    """

    NETWORK: ClassVar[str] = "base-sepolia"
    NOBODYS: ClassVar[str] = "0x" + "ab" * 32

    chain: ChainUnderTest
    sender: TestWallet
    signers: list[str]
    confirms: bool = False
    also: tuple[str, ...] = ()

    def supported(self) -> dict[str, Any]:
        networks = (self.NETWORK, *self.also)
        kinds = [kind for network in networks for kind in self.kinds(network, None)]
        return {"kinds": kinds, "extensions": ["confirm"] * self.confirms, "signers": {"eip155:*": self.signers}}

    def read(self, payload: dict[str, Any]) -> EvmPayload:
        read = parse_payload(payload)
        assert isinstance(read, EvmPayload)
        return read

    async def hand_over(self, payload: EvmPayload) -> str:
        data = transfer_calldata(payload.authorization, payload.signature)
        return await asyncio.to_thread(self.chain.send, self.sender, USDC_ADDRESS, data)

    async def send(self, payload: EvmPayload) -> str:
        """The hash of the mined transaction, which may have reverted."""
        data = transfer_calldata(payload.authorization, payload.signature)
        receipt = await asyncio.to_thread(self.chain.send_and_wait, self.sender, USDC_ADDRESS, data)
        sent: str = receipt["transactionHash"]
        return sent


async def sends_twice(foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
    """Sends two transactions of which one must revert, and names that one."""
    await foreign.send(payload)
    return success(foreign, await foreign.send(payload))


@asynccontextmanager
async def run_foreign(chain: ChainUnderTest, settling: Settling = honest) -> AsyncIterator[ForeignOnEvm]:
    """The facilitator on a free port; it sends from the chain's relayer."""
    relayer = chain.wallets.relayer
    foreign = ForeignOnEvm(chain=chain, sender=relayer, signers=[relayer.address], settling=settling)
    async with foreign.running():
        yield foreign


class SalesOnEvm(SalesAbroad):
    """Of a gateway on an EVM network."""

    __slots__ = ()

    async def sign(self, gate: dict[str, Any]) -> tuple[str, Authorization]:
        """A payment, and what it authorizes."""
        signed: list[Authorization] = []

        def keep(wanted: Authorization) -> Authorization:
            signed.append(replace(wanted, valid_before=wanted.valid_before + VALID_SECONDS))
            return signed[0]

        challenge = (await self.buyer.ask("GET", gate["accessUrl"])).json()
        return self.buyer.sign(challenge, keep), signed[0]

    async def payment(self, gate: dict[str, Any]) -> str:
        return (await self.sign(gate))[0]


class SiteOnEvm(Site):
    """On the sandbox's chain."""

    SALES = SalesOnEvm
    EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"

    foreign: ForeignOnEvm

    @property
    def rpc_url(self) -> str:
        return self.foreign.chain.url

    @property
    def pay_to(self) -> str:
        return PAYEE

    def received_micro(self) -> int:
        return self.foreign.chain.balance(PAYEE)

    def last_transaction(self) -> str:
        block = self.foreign.chain.rpc.call("eth_getBlockByNumber", "latest", False)
        last: str = block["transactions"][-1]
        return last

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        rpc = self.foreign.chain.rpc
        rpc.call("evm_setAutomine", False)
        try:
            yield
            rpc.call("evm_mine")
        finally:
            rpc.call("evm_setAutomine", True)

    def age(self) -> None:
        """A second before the last payment ends nothing has changed."""

    def expire(self) -> None:
        rpc = self.foreign.chain.rpc
        rpc.call("evm_increaseTime", 2 * VALID_SECONDS)
        rpc.call("evm_mine")

    def finalise(self) -> None:
        """The newest block is as good as any."""


@asynccontextmanager
async def site_on_evm(
    folder: Path, chain: ChainUnderTest, target: RecordingTarget, settling: Settling = honest
) -> AsyncIterator[SiteOnEvm]:
    """The facilitator, and a place for its gateway."""
    async with run_foreign(chain, settling) as foreign:
        yield SiteOnEvm(foreign, folder / "gateway.db", target)
