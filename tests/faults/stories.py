"""Random stories: what buyers and owners do at once while programs and connections fail, drawn from a seed.

A payment is signed once and presented until it is known what became of it. At a story's end each was carried out as its
buyer was told, each sale has what it was paid for less what was served, and books, chain and target agree.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import aiohttp
from aiohttp import web
from yarl import URL

from tests.books import purchases_and_calls
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.rpc_client import RpcClient
from tests.chains.solana_node import WALLETS
from tests.faults.aftermath import assert_nothing_lost_on_solana, authorization_in
from tests.faults.counts import came
from tests.faults.gateway_site import SOLD, VALID_SECONDS, GatewaySite, alone, for_long
from tests.faults.striking import Victim, faulty_hub
from tests.faults.tcp_chaos import OF_HUB, Fault, TcpChaos
from tests.gateway.foreign_facilitator import Settling, honest
from tests.gateway.foreign_on_evm import ForeignOnEvm, run_foreign
from tests.gateway.gateway_process import gateway_keys
from tests.gateway.hostile_hub import HostileHub, lose_answer, pass_on, run_hostile_hub
from tests.gateway.solana_market import NETWORK, SolanaMarket
from tests.ports import free_port
from tollkeeper.client.requests import RefusedError
from tollkeeper.core.evm.encoding import authorization_digest, sign_digest
from tollkeeper.core.solana.rules import SolanaTransfer, read_transfer
from tollkeeper.core.x402.version1 import EvmPayload, Payment, decode_payment_header, payment_body
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.solana.node import SolanaNode

STORY_SECONDS: Final = 180
CONTENT: Final = b"what is sold" * 5_000
# What befalls a connection in the middle of a story. Whatever hangs for longer than a story is another test's.
_OF_CONNECTIONS: Final = (Fault.CUT_REQUEST, Fault.CUT_ANSWER, Fault.TOO_LATE, Fault.TWICE, Fault.ASKED_TWICE)
_ASKED_OF_NODES: Final = (
    "eth_call",
    "eth_sendRawTransaction",
    "eth_getTransactionReceipt",
    "eth_getBlockByNumber",
    "simulateTransaction",
    "sendTransaction",
    "getSignatureStatuses",
)
_ASKED_OF_HUBS: Final = ("/settle", "/verify", "/payments", "/transfer")

Act: TypeAlias = Callable[[Random], Coroutine[Any, Any, object]]


@dataclass(slots=True)
class Sale:
    """One payment at one gate. `served` answers were seen, `lost` were not: a crash or a cut came between.

    `contested`: what becomes of it is the chain's to say, and not the buyer's.
    """

    gate: dict[str, Any]
    header: str
    credits: int
    served: int = 0
    lost: int = 0
    contested: bool = False


@dataclass(slots=True, kw_only=True)
class Story(ABC):
    """What is played at a site. `hub`: a process apart, where there is one; `way`: the proxy before it.

    `may_expire`: nobody is asked twice, so that what was lost on its way is known once its time is over.
    """

    site: GatewaySite
    random: Random
    hub: Victim | None = None
    way: HostileHub | None = None
    may_expire: bool = False
    seconds: float = STORY_SECONDS
    sales: list[Sale] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _token: str = ""

    @abstractmethod
    async def payment(self, gate: dict[str, Any], chosen: Random) -> str:
        """Of a payer who can pay, for that gate."""

    @abstractmethod
    async def nothing_lost(self) -> None:
        """Chain and books agree with what was told."""

    @abstractmethod
    def acts(self) -> list[Act]:
        """What is done here beside buying."""

    @abstractmethod
    def expire(self) -> None:
        """The time of every payment is over."""

    async def ask(self, method: str, url: str, **given: Any) -> Answer | None:
        """The answer; None where it is to be asked again."""
        return await self.site.ask(method, url, **given)

    async def told(self, method: str, url: str, *statuses: int, **given: Any) -> tuple[Answer, int]:
        """The answer that is one, and how many were none."""
        lost = 0
        while (answer := await self.ask(method, url, **given)) is None:
            lost += 1
            await asyncio.sleep(0.1)
        assert answer.status in statuses, (method, url, answer.status, answer.body)
        return answer, lost

    async def bearer(self) -> dict[str, str]:
        """Of the buyer, logged in once."""
        while not self._token:
            with suppress(RefusedError, aiohttp.ClientError, OSError, TimeoutError, KeyError, ValueError):
                await self.site.gateway.url()
                self._token = await self.site.buyer.login(self.site.url)
        return {"Authorization": f"Bearer {self._token}"}

    async def gate(self, **fields: object) -> dict[str, Any]:
        """A gate of these terms."""
        body = {**SOLD, "targetUrl": self.site.target.url, **fields}
        answer, _ = await self.told("POST", self.site.paygates, 201, body=body)
        return answer.json()

    async def file_gate(self, **fields: object) -> dict[str, Any]:
        """A gate that sells a file."""
        headers = {**await self.bearer(), "Idempotency-Key": secrets.token_hex(16)}
        while True:
            form = aiohttp.FormData()
            for name, value in {**SOLD, "resourceType": "file", **fields}.items():
                form.add_field(name, str(value))
            form.add_field("file", CONTENT, filename="sold.bin")
            answer = await self.ask("POST", self.site.paygates, form=form, headers=headers)
            if answer is not None:
                assert answer.status == 201, answer.body
                return answer.json()
            await asyncio.sleep(0.1)

    async def buy(self, chosen: Random, **fields: object) -> Sale:
        """A gate of its own, one payment for it, and some of the calls that it bought, the first ones at once."""
        granted = chosen.choice((1, 2, 3))
        kind = chosen.choice(("plain", "plain", "trusted", "login", "file"))
        more = {"trusted": {"assumeValid": True}, "login": {"requireAuth": True}}.get(kind, {})
        make = self.file_gate if kind == "file" else self.gate
        gate = await make(**{"credits": granted, **more, **fields})
        sale = Sale(gate, await self.payment(gate, chosen), granted)
        headers = {"X-Payment": sale.header, **(await self.bearer() if kind == "login" else {})}
        first = min(granted, chosen.choice((1, 1, 2, 3)))
        answers = await asyncio.gather(*(self.called(sale, headers) for _ in range(first)))
        came(f"sale in a story: {kind}")
        if any(answer.status == 402 and answer.error_code == "PAYMENT_EXPIRED" for answer in answers):
            self.refused.append(sale.header)
            return sale
        self.sales.append(sale)
        for answer in answers if kind == "file" else ():
            if answer.status == 402:  # an answer that nobody saw took the credit
                continue
            link = URL(answer.json()["downloadUrl"], encoded=True)
            assert (await self.told("GET", str(link), 200))[0].body == CONTENT
        return sale

    async def called(self, sale: Sale, headers: dict[str, str]) -> Answer:
        """One call; refused where its payment is over, or where answers that nobody saw took the credits."""
        statuses = (200, 402, 404) if sale.contested else (200, 402)
        answer, lost = await self.told("GET", sale.gate["accessUrl"], *statuses, headers=headers)
        sale.lost += lost
        sale.served += answer.status == 200
        if answer.status == 402 and answer.error_code != "CREDITS_EXHAUSTED" and not sale.contested:
            assert (self.may_expire, answer.error_code) == (True, "PAYMENT_EXPIRED"), answer.body
        return answer

    async def replay(self, chosen: Random) -> None:
        """What bought here buys nothing elsewhere, and no more than it bought here."""
        sale = await self.buy(chosen)
        if sale not in self.sales:
            return
        headers = {"X-Payment": sale.header}
        other = await self.gate(credits=1)
        refused, _ = await self.told("GET", other["accessUrl"], 402, headers=headers)
        assert refused.error_code == "NONCE_ALREADY_USED", refused.body
        if not sale.gate.get("requireAuth"):
            for _ in range(sale.credits + 1):
                answer = await self.called(sale, headers)
            assert (answer.status, answer.error_code) == (402, "CREDITS_EXHAUSTED")
            assert sale.served <= sale.credits

    async def die(self, chosen: Random) -> None:
        """A process is killed: of the gateway, or the hub."""
        gateway, hub = self.site.gateway, self.hub
        if hub is not None and chosen.random() < 0.4:
            hub.end()
            came("kill in a story: hub")
        else:
            gateway.end()
            came("kill in a story: gateway")
        if hub is not None:
            await hub.url()

    async def fail(self, chosen: Random) -> None:
        """A connection fails, between program and node or gateway and hub."""
        chaos = chosen.choice(self._chaoses() or [TcpChaos()])
        asked = _ASKED_OF_HUBS if chaos.calls is OF_HUB else _ASKED_OF_NODES
        fault = chosen.choice(_OF_CONNECTIONS)
        chaos.strike(chosen.choice(asked), fault, after_bytes=chosen.choice((0, 10, 100)))
        came("connection that fails in a story")

    async def lose(self, _chosen: Random) -> None:
        """For a moment what the hub settles is told to nobody."""
        if self.way is not None:
            self.way.settling = lose_answer
            await asyncio.sleep(0.3)
            self.way.settling = pass_on
            came("answers lost in a story")

    def _chaoses(self) -> list[TcpChaos]:
        struck = [one for one in (self.site.gateway, self.hub) if isinstance(one, Victim)]
        return [chaos for one in struck for chaos in one.chaoses]

    async def play(self, count: int) -> None:
        """So many acts, and what holds afterwards."""
        doing: list[Act] = [self.buy, self.buy, self.buy, self.replay, *self.acts()]
        failing = self.faults()
        async with asyncio.timeout(self.seconds):
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    if self.random.random() < 0.35:
                        await self.random.choice(failing)(self._drawn())
                    else:
                        group.create_task(self.random.choice(doing)(self._drawn()))
                    await asyncio.sleep(self.random.choice((0, 0.05, 0.3)))
                for chaos in self._chaoses():
                    chaos.calm()
                    chaos.heal()
                await self.heal()
                if self.may_expire:
                    await self.carried_out()
                    self.expire()
            await self.decided()
        self.judge()
        await self.nothing_lost()

    def faults(self) -> list[Act]:
        """What fails here."""
        return [self.die, self.fail, self.fail, self.lose]

    async def heal(self) -> None:
        """What else failed fails no more, so that whoever waits is told."""
        await asyncio.sleep(0)

    def _drawn(self) -> Random:
        """Of one act: what others draw meanwhile changes nothing of it."""
        return Random(self.random.random())

    async def carried_out(self) -> None:
        """What was sold on trust, where anybody still does it: it would be void if it expired before on a slow machine.

        What is only claimed has some time, too.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                while self.site.rows("SELECT 1 FROM purchases WHERE state = 'LIVE' AND confirmed = 0"):  # noqa: ASYNC110 - a database is asked
                    await asyncio.sleep(0.1)
        await asyncio.sleep(10)

    async def decided(self) -> None:
        """No claim is left open; what was sold on trust is confirmed."""
        is_open = "SELECT 1 FROM purchases WHERE state = 'CLAIMED' OR (state = 'LIVE' AND confirmed = 0)"
        while self.site.rows(is_open):
            await self.site.gateway.url()
            await asyncio.sleep(0.1)

    def judge(self) -> None:
        """Each sale is there once, and each of its credits was served, or lost with an answer that nobody saw."""
        held = {
            (row[0], row[1]): row[2:]
            for row in self.site.rows(purchases_and_calls("nonce, gate_id, state, granted, remaining, calls"))
        }
        for sale in self.sales:
            self.judge_sale(sale, *held.get((self.nonce(sale.header), sale.gate["id"]), (None, 0, 0, 0)))
        wanted = {self.nonce(one.header) for one in self.sales if not one.contested}
        live = [nonce for (nonce, _), row in held.items() if row[0] == "LIVE"]
        assert wanted <= set(live)
        assert not {self.nonce(one) for one in self.refused} & set(live)
        reached = [one.header("x-request-id") for one in self.site.target.requests]
        assert len(reached) == len(set(reached)), "a call reached the target twice"
        assert set(reached) <= {name for (name,) in self.site.rows("SELECT id FROM calls")}, "a call nobody paid"

    def judge_sale(self, sale: Sale, state: str | None, granted: int, remaining: int, calls: int) -> None:
        """The books' word on one sale: it is there, and has what it was paid for less what was served."""
        assert (state, granted) == ("LIVE", sale.credits), sale
        assert sale.served <= calls == granted - remaining <= sale.served + sale.lost, (sale, calls)

    @abstractmethod
    def nonce(self, header: str) -> str:
        """By which the books name the payment."""


@dataclass(slots=True, kw_only=True)
class EvmStory(Story):
    """On the embedded chain. `contract`: a wallet that is one."""

    contract: str
    moved: list[EvmPayload] = field(default_factory=list)

    async def payment(self, gate: dict[str, Any], chosen: Random) -> str:
        challenge = await self.site.challenge(gate["accessUrl"], await self.bearer())
        if chosen.random() < 0.3:
            self.site.chain.mint(self.contract, 10_000)
            return self.site.buyer.sign(challenge, lambda wanted: replace(for_long(wanted), payer=self.contract))
        return Buyer(self.site.wallet()).sign(challenge, for_long)

    def nonce(self, header: str) -> str:
        return authorization_in(header).nonce

    def acts(self) -> list[Act]:
        return [self.cancel, *([] if self.may_expire else [self.transfer, self.transfer, self.pay_without_money])]

    def expire(self) -> None:
        self.site.chain.rpc.call("evm_increaseTime", 2 * VALID_SECONDS)
        self.site.chain.rpc.call("evm_mine")

    async def cancel(self, _chosen: Random) -> None:
        """Its payer makes a payment worthless, and presents it."""
        signed = await self.site.sign_for(await self.gate(), self.site.wallet())
        self.site.cancel(signed)
        answer, _ = await self.told("GET", signed.gate["accessUrl"], 402, headers={"X-Payment": signed.header})
        assert answer.error_code == "NONCE_ALREADY_USED", answer.body
        self.refused.append(signed.header)
        came("refusal in a story")

    async def pay_without_money(self, _chosen: Random) -> None:
        """Its payer has moved the money away."""
        gate = await self.gate()
        challenge = await self.site.challenge(gate["accessUrl"])
        header = Buyer(self.site.poor()).sign(challenge, for_long)
        answer, _ = await self.told("GET", gate["accessUrl"], 402, headers={"X-Payment": header})
        assert answer.error_code == "INSUFFICIENT_FUNDS", answer.body
        self.refused.append(header)
        came("refusal in a story")

    async def transfer(self, _chosen: Random) -> None:
        """A direct transfer, asked for twice, which is told to have been made each time, and made once."""
        chain, wallet = self.site.chain, self.site.wallet()
        wanted = chain.authorization(payer=wallet.address, pay_to="0x" + secrets.token_hex(20))
        signature = sign_digest(authorization_digest(chain.separator, wanted), wallet.private_key)
        payload = EvmPayload(wanted, signature)
        url = self.site.url + "/api/v1/transfer"
        said = payment_body(Payment(1, "exact", "base-sepolia", payload))
        body = {"network": "base-sepolia", **said["payload"]}
        asked, _ = await self.told("POST", url, 402, body=body)
        paid = Buyer(wallet).sign(asked.json(), for_long)
        for _ in range(2):
            done, _ = await self.told("POST", url, 200, body=body, headers={"X-Payment": paid})
            assert done.json()["success"] is True, done.body
        moved = decode_payment_header(paid.encode()).payload
        assert isinstance(moved, EvmPayload)
        self.moved.append(moved)
        came("transfer in a story")

    async def nothing_lost(self) -> None:
        self.site.paid = [authorization_in(one.header) for one in self.sales]
        self.site.paid += [one.authorization for one in self.moved]
        self.site.refused = [authorization_in(one) for one in self.refused]
        await self.site.nothing_lost()


@dataclass(slots=True, kw_only=True)
class SolanaStory(Story):
    """On the embedded Solana chain."""

    node: SolanaNode

    @property
    def market(self) -> SolanaMarket:
        """The same gateway, to sign payments for."""
        site = self.site
        return SolanaMarket(site.url, self.node.url, WALLETS, site.target, site.buyer)

    async def payment(self, gate: dict[str, Any], chosen: Random) -> str:  # noqa: ARG002 - as every story's
        challenge, _ = await self.told("GET", gate["accessUrl"], 402, headers=await self.bearer())
        (wanted,) = challenge.json()["accepts"]
        return await self.market.payment(wanted)

    async def gate(self, **fields: object) -> dict[str, Any]:
        return await Story.gate(self, **{"network": NETWORK, "paymentAddress": WALLETS.owner.address, **fields})

    async def file_gate(self, **fields: object) -> dict[str, Any]:
        return await Story.file_gate(self, **{"network": NETWORK, "paymentAddress": WALLETS.owner.address, **fields})

    def nonce(self, header: str) -> str:
        return _transfer_in(header).transaction.message.hash

    def acts(self) -> list[Act]:
        return [self.hold]

    def expire(self) -> None:
        """Nobody waits for that here."""

    async def hold(self, _chosen: Random) -> None:
        """For a moment no block is made."""
        self.node.chain.holds = True
        await asyncio.sleep(0.5)
        self.node.chain.release()
        came("held blocks in a story")

    async def nothing_lost(self) -> None:
        self.node.chain.release()
        paid = [_transfer_in(one.header) for one in self.sales]
        refused = [_transfer_in(one) for one in self.refused]
        await assert_nothing_lost_on_solana(self.site.directory, self.node, paid=paid, refused=refused)


def _transfer_in(header: str) -> SolanaTransfer:
    return read_transfer(decode_payment_header(header.encode()).transacted)


@asynccontextmanager
async def evm_story(directory: Path, chain: ChainUnderTest, seed: int) -> AsyncIterator[EvmStory]:
    """Before a hub of one or two nodes, its own or apart, or a stranger's facilitator."""
    random = Random(seed)
    kind = random.choice(("apart", "apart of two nodes", "own", "stranger"))
    contract = chain.plant_smart_wallet(chain.wallets.buyer.address)
    came(f"story: {kind}")
    async with AsyncExitStack() as stack:
        hub: Victim | None = None
        way: HostileHub | None = None
        facilitator_url, port = "", free_port()
        if kind == "stranger":
            # It sends in threads, and a connection to a node is one thread's.
            own = replace(chain, rpc=stack.enter_context(closing(RpcClient(chain.url))))
            facilitator = await stack.enter_async_context(run_foreign(own, one_by_one()))
            facilitator_url = facilitator.url
        elif kind.startswith("apart"):
            nodes = [chain.url] * (2 if "two nodes" in kind else 1)
            hub = await stack.enter_async_context(faulty_hub(directory, *nodes, trusted_keys=gateway_keys(port)))
            way = await stack.enter_async_context(await way_to(hub))
            facilitator_url = way.url
        site = await stack.enter_async_context(alone(directory, chain, facilitator_url, port=port))
        if kind == "stranger":
            site.foreign = facilitator
        yield EvmStory(
            site=site,
            random=random,
            hub=hub,
            way=way,
            may_expire=kind == "stranger",
            contract=contract,
        )


@asynccontextmanager
async def solana_story(directory: Path, chain: ChainUnderTest, seed: int) -> AsyncIterator[SolanaStory]:
    """A hub of one or two nodes apart. `chain` gives the wallet that logs in."""
    random = Random(seed)
    nodes = random.choice((1, 2))
    came(f"story: Solana, {nodes} nodes")
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(SolanaNode(wallets=WALLETS))
        hub = await stack.enter_async_context(faulty_hub(directory, *nodes * [node.url], is_solana=True))
        way = await stack.enter_async_context(await way_to(hub))
        site = await stack.enter_async_context(
            alone(directory, chain, way.url, solana_url=node.url, default_payment_address=WALLETS.owner.address)
        )
        yield SolanaStory(site=site, random=random, hub=hub, way=way, node=node)


def one_by_one() -> Settling:
    """A stranger's way to settle: honest, and one payment after the other."""
    in_turn = asyncio.Lock()

    async def settling(foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
        async with in_turn:
            return await honest(foreign, payload)

    return settling


async def way_to(hub: Victim) -> AbstractAsyncContextManager[HostileHub]:
    """The proxy before a hub that may be another process, at another port, each time."""
    last = [await hub.url()]

    def where() -> str:
        if hub.running_url:
            last[0] = hub.running_url
        return last[0]

    return run_hostile_hub(where)
