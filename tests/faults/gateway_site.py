"""A gateway that faults befall, its facilitator, and buyers who present a payment until they know, with one signature.

The gateway is a process between a faulty database, a faulty way to its facilitator and a faulty way to its node. The
facilitator is a hub of ours, a process of its own behind a proxy that may lose its answers, or a stranger's.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from tests.chains.abi import encode_call
from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.counts import came
from tests.faults.striking import Case, Struck, Victim
from tests.faults.tcp_chaos import OF_HUB, TcpChaos, run_tcp_chaos
from tests.gateway.composed import settings_for
from tests.gateway.foreign_on_evm import ForeignOnEvm, run_foreign
from tests.gateway.gateway_process import GatewayProcess, gateway_keys, gateway_settings
from tests.gateway.hostile_hub import HostileHub, run_hostile_hub
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.hub.faulty_database import Kind
from tests.hub.hub_process import HubProcess, TestProcess
from tests.ports import free_port
from tollkeeper.core.evm.encoding import Authorization
from tollkeeper.core.x402.version1 import EvmPayload, decode_payment_header
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet, derive_wallet
from tollkeeper.serving.books.reconciliation import compare_with_chain

PAYEE: Final = "0x" + "77" * 20
CREDITS: Final = 5
PRICE: Final = 10_000
# What every gate is made with, unless told otherwise.
SOLD: Final[dict[str, Any]] = {"price": "0.01", "paymentAddress": PAYEE, "credits": CREDITS}
PATIENCE_SECONDS: Final = 90
VALID_SECONDS: Final = 3600  # longer than a busy machine needs


@dataclass(frozen=True, slots=True)
class Signed:
    """A payment for a gate."""

    gate: dict[str, Any]
    header: str
    wallet: TestWallet

    @property
    def payload(self) -> EvmPayload:
        payload = decode_payment_header(self.header.encode()).payload
        assert isinstance(payload, EvmPayload)
        return payload

    @property
    def authorization(self) -> Authorization:
        return self.payload.authorization


@dataclass(slots=True, kw_only=True)
class GatewaySite:
    """`hub` is the proxy before our own hub, whose process `hub_process` is; `foreign` the stranger.

    One is there, or the gateway is of a program that has a hub of its own.

    `paid` is what the facilitator carried out and nobody signed twice for, `refused` what it never did; of those
    strangers carried out the `honoured`. `gone`: sales whose payment is gone and known to no hub.
    `purse`: payers who were given their money before.
    """

    directory: Path
    chain: ChainUnderTest
    gateway: Struck
    target: RecordingTarget
    buyer: Buyer
    port: int
    changes: dict[str, Any]
    hub: HostileHub = field(default_factory=HostileHub)
    hub_process: TestProcess | None = None
    foreign: ForeignOnEvm | None = None
    paid: list[Authorization] = field(default_factory=list)
    refused: list[Authorization] = field(default_factory=list)
    honoured: list[Authorization] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    wallets: int = 0
    purse: list[TestWallet] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paygates(self) -> str:
        """Where gates are made."""
        return self.url + "/api/v1/paygates"

    def wallet(self) -> TestWallet:
        """Of a payer who has never paid."""
        if self.purse:
            return self.purse.pop()
        self.wallets += 1
        wallet = derive_wallet(f"payer {self.wallets}", seed="gateway boundaries")
        self.chain.mint(wallet.address, PRICE)
        return wallet

    def poor(self) -> TestWallet:
        """Of a payer who has nothing."""
        self.wallets += 1
        return derive_wallet(f"payer {self.wallets}", seed="gateway boundaries")

    async def sign(self, wallet: TestWallet | None = None, **fields: object) -> Signed:
        """A payment for a gate of its own, of some credits unless told otherwise."""
        await self.gateway.url()
        answer = await self.buyer.ask("POST", self.paygates, body=SOLD | {"targetUrl": self.target.url} | fields)
        assert answer.status == 201, answer.body
        return await self.sign_for(answer.json(), wallet)

    async def sign_for(self, gate: dict[str, Any], wallet: TestWallet | None = None) -> Signed:
        """A payment for that gate."""
        challenge = await self.challenge(gate["accessUrl"])
        payer = Buyer(wallet or self.buyer.wallet)
        return Signed(gate, payer.sign(challenge, for_long), payer.wallet)

    async def challenge(self, url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """As soon as a node that was away at the start has told the token's name."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                challenge = (await until_told(partial(self.ask, "GET", url, headers=headers), 402)).json()
                if challenge["accepts"][0]["extra"]["name"] == self.chain.token_name:
                    return challenge
                await asyncio.sleep(0.1)

    async def call(self, signed: Signed) -> Answer | None:
        """The answer that says what became of the payment; None where it is to be presented again."""
        return await self.ask("GET", signed.gate["accessUrl"], headers={"X-Payment": signed.header})

    async def ask(self, method: str, url: str, **given: Any) -> Answer | None:
        """The same of any request."""
        await self.gateway.url()
        try:
            answer = await self.buyer.ask(method, url, **given)
        except (aiohttp.ClientError, TimeoutError):
            return None
        if answer.status == 503:
            assert answer.error_code in {"SETTLEMENT_PENDING", "UNAVAILABLE"}, answer.body
            assert "accepts" not in answer.json()
            return None
        return answer

    async def until(self, signed: Signed, status: int = 200) -> Answer:
        """Presents the payment until the answer says what became of it."""
        return await until_told(partial(self.call, signed), status)

    async def come(self, case: Case, deaths: int | None = None) -> None:
        """The fault came, whichever process it befell; a crash once another one runs."""
        deaths = self.gateway.deaths if deaths is None else deaths
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.gateway.has_come(case) or (case.kind is Kind.CRASH and self.gateway.deaths == deaths):
                await self.gateway.url()
                await asyncio.sleep(0.02)
        came(f"{case.kind.value} at a boundary of a gateway")

    async def bought_once(self, signed: Signed, case: Case, deaths: int, *, calls: int = 1, cut: int = 1) -> None:
        """The fault came; its payer paid once, and was charged for what was served, and for what a crash `cut`."""
        await self.come(case, deaths)
        self.paid.append(signed.authorization)
        await self.charged_once(signed, case, calls=calls, cut=cut)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """What a statement of ours gives on the gateway's file."""
        with closing(sqlite3.connect(self.directory / "gateway.db", timeout=20)) as connection, connection:
            return connection.execute(sql, values).fetchall()

    def sale(self, signed: Signed) -> tuple[Any, ...]:
        """Its state, failure, whether it is confirmed, what was granted and what remains."""
        columns = "state, failure, confirmed, granted, remaining"
        found = self.rows(f"SELECT {columns} FROM holdings WHERE nonce = ?", signed.authorization.nonce)  # noqa: S608
        assert len(found) <= 1
        return found[0] if found else (None, None, None, None, None)

    async def until_sale(
        self, signed: Signed, is_so: Callable[..., bool], *, seconds: float = PATIENCE_SECONDS
    ) -> tuple[Any, ...]:
        """The sale once it is so; whoever died meanwhile is started."""
        async with asyncio.timeout(seconds):
            while not is_so(*(found := self.sale(signed))):
                await self.gateway.url()
                await asyncio.sleep(0.02)
            return found

    def expire(self, signed: Signed) -> None:
        """The request to settle it is too old to be carried out, if it is under way."""
        past = "UPDATE purchases SET attempt_ms = attempt_ms - 100000 WHERE nonce = ?"
        self.rows(past, signed.authorization.nonce)

    def look_now(self, signed: Signed) -> None:
        """The sale is due to be looked at again."""
        due = "UPDATE purchases SET follow_ms = 1 WHERE nonce = ? AND state = 'LIVE' AND follow_ms IS NOT NULL"
        self.rows(due, signed.authorization.nonce)

    async def looked(self, signed: Signed) -> None:
        """It was."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.rows("SELECT 1 FROM purchases WHERE nonce = ? AND follow_ms = 1", signed.authorization.nonce):
                await self.gateway.url()
                await asyncio.sleep(0.02)

    async def charged_once(self, signed: Signed, case: Case, *, calls: int = 1, cut: int = 1) -> None:
        """One credit is gone for each call that was served; for each that a crash cut short, perhaps another."""
        lost = cut if case.kind is Kind.CRASH else 0
        await self.until_sale(
            signed,
            lambda state, _failure, _confirmed, granted, remaining: (
                state == "LIVE" and granted == CREDITS and calls <= granted - remaining <= calls + lost
            ),
        )

    async def honour(self, signed: Signed, transaction: str) -> dict[str, Any]:
        """What the operator's order came to."""
        settings = gateway_settings(self.directory, self.chain.url, "http://127.0.0.1:1", self.port)
        return await honour_payment(settings, {"gate": signed.gate["slug"], "transaction": transaction, "nonce": None})

    def cancel(self, signed: Signed) -> None:
        """Its payer makes the payment worthless."""
        used = signed.authorization
        signature = self.chain.sign_cancellation(signed.wallet, used.nonce)
        self.chain.send_and_wait(self.chain.wallets.faucet, *cancellation(used, signature))

    async def nothing_lost(self) -> None:
        """Books, chain and target agree; nobody was served who had not paid, and nobody paid twice."""
        await self.gateway.url()
        refused = [*self.refused, *self.honoured]
        await assert_nothing_lost(self.directory, self.chain, paid=self.paid, refused=refused, gone=self.gone)
        (calls,) = self.rows("SELECT COUNT(*) FROM calls")[0]
        assert len(self.target.requests) <= calls
        earned = sum(one.value for one in (*self.paid, *self.honoured) if one.pay_to.lower() == PAYEE)
        assert self.chain.balance(PAYEE) == earned
        if self.hub_process is None and self.foreign is None:  # its hub has the same books
            settings = settings_for(self.chain.url, self.directory / "gateway.db")
            assert await compare_with_chain(settings) == []


async def until_told(ask: Callable[[], Any], *statuses: int) -> Answer:
    """Asks until it is told, and told one of these."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (answer := await ask()) is None:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    told: Answer = answer
    assert told.status in statuses, told.body
    return told


def for_long(wanted: Authorization) -> Authorization:
    """Valid also by clocks that are minutes behind, and by such that are an hour ahead."""
    earlier = wanted.valid_after - VALID_SECONDS
    return replace(wanted, valid_after=earlier, valid_before=wanted.valid_before + VALID_SECONDS)


def cancellation(used: Authorization, signature: bytes) -> tuple[str, bytes]:
    """Whom to call, and with what, so that an authorization is worth nothing."""
    r, s, v = signature[:32], signature[32:64], signature[64]
    data = encode_call(
        "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)", used.payer, bytes.fromhex(used.nonce[2:]), v, r, s
    )
    return USDC_ADDRESS, data


class Selling(Protocol):
    """A gateway, to be started or serving, before the facilitator at that URL; at a `port`, or any."""

    def __call__(
        self, directory: Path, chain: ChainUnderTest, facilitator_url: str, /, port: int = 0, **changes: Any
    ) -> AbstractAsyncContextManager[GatewaySite]: ...


def send_once(buyer: Buyer) -> None:
    """Let it be told of each answer that is lost: of itself aiohttp sends a GET again, unseen, and a credit is gone."""
    buyer._open._retry_connection = False  # noqa: SLF001 - it has no other way


@asynccontextmanager
async def alone(
    directory: Path, chain: ChainUnderTest, facilitator_url: str, /, port: int = 0, **changes: Any
) -> AsyncIterator[GatewaySite]:
    """One process, to be started, between a faulty database, a faulty node and a faulty way to its facilitator.

    Without a facilitator's URL it has a hub of its own, on the same database, and a node that does as it is asked: on a
    network whose node was away at a start nothing is sold for a while.
    """
    port = port or free_port()
    async with AsyncExitStack() as stack:
        chaoses, node_url, hub_url = [TcpChaos()], chain.url, ""
        if facilitator_url:
            node = await stack.enter_async_context(run_tcp_chaos(chain.url))
            way = await stack.enter_async_context(run_tcp_chaos(facilitator_url, OF_HUB))
            chaoses, node_url, hub_url = [node, way], node.url, way.url
        target = await stack.enter_async_context(recording_target())
        buyer = await stack.enter_async_context(Buyer(chain.wallets.buyer))
        send_once(buyer)

        def start(orders: Path, on_start: Callable[[TestProcess], object]) -> TestProcess:
            return GatewayProcess(directory, node_url, hub_url, port, orders=orders, on_start=on_start, **changes)

        gateway = Victim(directory / "order.json", chaoses, start)
        try:
            yield GatewaySite(
                directory=directory,
                chain=chain,
                gateway=gateway,
                target=target,
                buyer=buyer,
                port=port,
                changes=changes,
            )
        finally:
            gateway.end()
            await asyncio.sleep(0.1)  # its connections to the target end, too


@asynccontextmanager
async def at_home(
    directory: Path, chain: ChainUnderTest, selling: Selling = alone, **changes: Any
) -> AsyncIterator[GatewaySite]:
    """The facilitator is a hub of ours, apart."""
    async with AsyncExitStack() as stack:
        port = free_port()
        process = await asyncio.to_thread(HubProcess, directory, chain.url, trusted_keys=gateway_keys(port))
        stack.callback(process.__exit__)
        hub = await stack.enter_async_context(run_hostile_hub(process.url))
        site = await stack.enter_async_context(selling(directory, chain, hub.url, port=port, **changes))
        site.hub, site.hub_process = hub, process
        yield site


@asynccontextmanager
async def abroad(directory: Path, chain: ChainUnderTest, selling: Selling = alone) -> AsyncIterator[GatewaySite]:
    """The facilitator is a stranger's."""
    async with run_foreign(chain) as foreign, selling(directory, chain, foreign.url) as site:
        site.foreign = foreign
        yield site
