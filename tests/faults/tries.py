"""Random tries: sales whose payments are tried again and again, while hub, answers and blocks come and go.

Of each payment any try may be refused, unheard, late, lost on its way or back, or fail in public, and any of that be
taken back by a reorganisation; titles of gates change, hub and gateway start again. Gateway and hub are the real ones,
on databases of their own, in the test's process; blocks are anvil's. In the end each sale is sold for exactly the
payments that the chain has, and nobody but its buyer was served.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import aiohttp
import pytest
from aiohttp import web

from tests.books import purchases_and_calls
from tests.chains.batching import payers
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.chains.rpc_client import RpcClient
from tests.faults.aftermath import assert_nothing_lost, authorization_in, transfers_of_signers
from tests.faults.counts import came
from tests.faults.gateway_site import for_long
from tests.gateway.composed import composed, settings_for
from tests.gateway.gateway_process import gateway_keys
from tests.gateway.hostile_hub import Forward, HostileHub, cut, lose_answer, pass_on, run_hostile_hub, says
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tests.hub.hub_under_test import hub_config, new_hub, new_payment, run_hub, serving
from tests.ports import free_port
from tollkeeper.api import clock_ms
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.networks import NETWORKS
from tollkeeper.gateway.purchase import recovery
from tollkeeper.hub.app import create_app
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet
from tollkeeper.settings.model import NetworkSettings, Role

T = TypeVar("T")

NETWORK: Final = "base-sepolia"
PAYEE: Final = "0x" + "77" * 20
CREDITS: Final = 2
DEPTH_MAX: Final = 5
# Fewer than a hub watches, which some more may follow before it looks.
WATCHED_MAX: Final = 60
# In the place of thirty: so long a transaction is not sent again that a reorganisation took with it.
WAIT_SECONDS: Final = 2
QUIET_SECONDS: Final = 40
_ERROR: Final = {"type": "server", "code": "INTERNAL_ERROR", "message": "not now"}
_DENIED: Final = {"type": "authentication", "code": "INVALID_SIGNATURE", "message": "not now"}
_WAYS: Final = {
    "lost": lose_answer,
    "cut": cut,
    "unheard": says(401, json.dumps({"error": _DENIED})),
    "broken": says(500, json.dumps({"error": _ERROR})),
    "away": says(503, "{}"),
}
_USED: Final = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"


@dataclass(slots=True, eq=False)
class Sale:
    """One payment at one gate. `way`: how its settle requests go by now."""

    gate: dict[str, Any] = field(repr=False)
    challenge: dict[str, Any] = field(repr=False)
    wallet: TestWallet = field(repr=False)
    payment: str = field(repr=False)
    way: str = ""
    token: str = ""
    is_blind: bool = False
    changed: bool = False
    served: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def nonce(self) -> str:
        return authorization_in(self.payment).nonce

    @property
    def binds_token(self) -> bool:
        return bool(self.gate.get("creditBinding") == "token")


@dataclass(slots=True, eq=False)
class Tries:
    """What is tried at one gateway and its hub; `trusts`: the hub knows the gateway's signature.

    `are_two`: the hub is two programs on one database, and any request may come to either.
    """

    folder: Path
    chain: ChainUnderTest
    target: RecordingTarget
    random: Random
    trusts: bool
    are_two: bool
    port: int
    between: HostileHub
    buyer: Buyer
    patch: pytest.MonkeyPatch
    sales: list[Sale] = field(default_factory=list)
    ahead_ms: int = 0
    floor: int = 0
    hub_urls: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    mining: asyncio.Lock = field(default_factory=asyncio.Lock)
    calling: set[asyncio.Task[None]] = field(default_factory=set)
    _hub: AsyncExitStack = field(default_factory=AsyncExitStack)
    _gateway: AsyncExitStack = field(default_factory=AsyncExitStack)

    # The programs.

    async def start_hub(self) -> None:
        keys = gateway_keys(self.port) if self.trusts else {}
        trusted = {url: {name: bytes.fromhex(key) for name, key in ring.items()} for url, ring in keys.items()}
        options: dict[str, Any] = {"recovery_interval_seconds": 0.1, "trusted_keys": trusted}
        options |= {"now_ms": lambda: clock_ms() + self.ahead_ms, "shared_life_seconds": 2.0 if self.are_two else None}
        first = await self._hub.enter_async_context(run_hub(self.folder, self.chain, **options))
        urls = [first.url]
        if self.are_two:
            config = hub_config(self.chain.url)
            beside = new_hub(first.database, (self.chain.wallets.relayer.private_key,), config, **options)
            self._hub.push_async_callback(beside.close)
            await beside.start()
            urls.append(await self._hub.enter_async_context(serving(create_app(beside))))
        self.hub_urls = urls

    @property
    def hub_url(self) -> str:
        """Of one of them."""
        return self.random.choice(self.hub_urls)

    async def start_gateway(self) -> None:
        network = NetworkSettings(NETWORKS[NETWORK], (self.chain.url,), asset_name=self.chain.token_name)
        given: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": self.between.url, "networks": {NETWORK: network}}
        path = self.folder / "gateway.db"
        for _ in range(50):  # another connection of this machine may have its port for a moment
            try:
                await self._gateway.enter_async_context(
                    composed(self.chain.url, path, at=self.port, drain_seconds=0, **given)
                )
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return

    async def end(self) -> None:
        self.chain.rpc.call("evm_setAutomine", True)
        self.chain.rpc.call("evm_mine")
        for task in self.calling:
            task.cancel()
        await asyncio.gather(*self.calling, return_exceptions=True)
        await self._gateway.aclose()
        await self._hub.aclose()

    async def restart_hub(self, chosen: Random) -> None:
        self.hub_urls = ["http://127.0.0.1:1"]
        await self._hub.aclose()
        await asyncio.sleep(chosen.choice((0, 0.3)))
        await self.start_hub()

    async def restart_gateway(self, _chosen: Random) -> None:
        """What is under way is cut off; the gateway ends it as it does on an order to end."""
        calling = list(self.calling)
        for task in calling:
            task.cancel()
        await asyncio.gather(*calling, return_exceptions=True)
        await self._gateway.aclose()
        await self.start_gateway()

    async def way(self, request: web.Request, forward: Forward) -> web.StreamResponse:
        """How a settle request goes: as that sale's are to."""
        nonce = json.loads(await request.read())["paymentPayload"]["payload"]["authorization"]["nonce"]
        sale = next(one for one in self.sales if one.nonce == nonce)
        self.seen[f"settle {sale.way or 'heard'}"] += 1
        return await _WAYS.get(sale.way, pass_on)(request, forward)

    async def verify(self, request: web.Request, forward: Forward) -> web.StreamResponse:
        """Of some payments it is only said when they are settled whether they are good."""
        nonce = json.loads(await request.read())["paymentPayload"]["payload"]["authorization"]["nonce"]
        is_blind = any(one.is_blind for one in self.sales if one.nonce == nonce)
        return await (says(200, '{"isValid": true}') if is_blind else pass_on)(request, forward)

    async def on_chain(self, work: Callable[[ChainUnderTest], T]) -> T:
        def done() -> T:
            with closing(RpcClient(self.chain.url)) as rpc:
                return work(replace(self.chain, rpc=rpc))

        return await asyncio.to_thread(done)

    # A sale's acts.

    async def sell(self, wallet: TestWallet, chosen: Random) -> Sale:
        body = {"price": "0.01", "targetUrl": self.target.url, "paymentAddress": PAYEE, "credits": CREDITS}
        fields: dict[str, Any] = {"assumeValid": chosen.random() < 0.2}
        if chosen.random() < 0.5:
            fields["creditBinding"] = "token"
        url = f"http://127.0.0.1:{self.port}/api/v1/paygates"
        gate = (await self.buyer.ask("POST", url, body=body | fields)).json()
        challenge = (await self.buyer.ask("GET", gate["accessUrl"])).json()
        payment = Buyer(wallet).sign(challenge, for_long)
        sale = Sale(gate, challenge, wallet, payment, is_blind=chosen.random() < 0.6)
        self.sales.append(sale)
        return sale

    def present(self, sale: Sale) -> asyncio.Task[None]:
        """Its buyer calls, and need not wait for the answer."""
        task = asyncio.create_task(self._present(sale))
        self.calling.add(task)
        task.add_done_callback(self.calling.discard)
        return task

    async def _present(self, sale: Sale) -> None:
        headers = {"X-Payment": sale.payment} | ({"X-Credit-Token": sale.token} if sale.token else {})
        answer = await self._asked(sale, headers)
        if answer is None:
            return
        sale.token = answer.headers.get("x-credit-token", sale.token)
        sale.served += answer.status == 200
        sale.told.append(f"{answer.status} {answer.error_code if answer.status != 200 else ''}")
        self.seen[f"told {sale.told[-1]}"] += 1

    async def _asked(self, sale: Sale, headers: dict[str, str]) -> Answer | None:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            return await self.buyer.ask("GET", sale.gate["accessUrl"], headers=headers)
        return None

    async def watch(self, sale: Sale) -> None:
        """Who read the payment on the chain shows it where only the token counts, and brings it to the hub itself."""
        shown = "SELECT nonce FROM purchases WHERE transaction_hash IS NOT NULL OR shown_in IS NOT NULL"
        if (sale.nonce,) not in self.rows("gateway.db", shown):
            return
        if sale.binds_token:
            answer = await self._asked(sale, {"X-Payment": sale.payment})
            assert answer is None or answer.status != 200, (sale.nonce, sale.told)
            assert answer is None or "x-credit-token" not in answer.headers, (sale.nonce, answer.headers)
            self.seen[f"watcher told {answer.status if answer else 'nothing'}"] += 1
        if self.trusts:
            wanted = {**sale.challenge["accepts"][0], "resource": "https://another.example/"}
            body = {"x402Version": 1, "paymentRequirements": wanted, "confirm": True}
            body["paymentPayload"] = json.loads(base64.b64decode(sale.payment))
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                told = await self.buyer.ask("POST", self.hub_url + "/settle", body=body)
                assert told.status != 200 or told.json()["success"] is False, sale.nonce
                self.seen[f"stranger told {told.status}"] += 1

    async def fail(self, sale: Sale) -> None:
        """The money goes elsewhere in the block that is to hold its payment, or before anything is sent."""
        async with self.mining:
            await self.on_chain(lambda chain: chain.rpc.call("evm_setAutomine", False))
            try:
                self.present(sale)
                for _ in range(20):
                    await asyncio.sleep(0.03)
                    if await self.on_chain(lambda chain: chain.rpc.call("txpool_status")["pending"]) != "0x0":
                        break
                await self.on_chain(lambda chain: self._drain(chain, sale))
            finally:
                await self.on_chain(lambda chain: chain.rpc.call("evm_setAutomine", True))
                await self.on_chain(lambda chain: chain.rpc.call("evm_mine"))
        self.seen["fail"] += 1

    def _drain(self, chain: ChainUnderTest, sale: Sale) -> None:
        held = chain.balance(sale.wallet.address)
        if held:
            data = self._spending(chain, sale, held)
            chain.send(chain.wallets.faucet, USDC_ADDRESS, data, max_priority_fee_per_gas=10**8)
        chain.rpc.call("evm_mine")

    def _spending(self, chain: ChainUnderTest, sale: Sale, value: int) -> bytes:
        spent = new_payment(chain, signer=sale.wallet, value=value, pay_to="0x" + "99" * 20)
        return transfer_calldata(
            spent.authorization, bytes.fromhex(spent.body["paymentPayload"]["payload"]["signature"][2:])
        )

    async def enrich(self, sale: Sale) -> None:
        async with self.mining:
            await self.on_chain(lambda chain: chain.mint(sale.wallet.address, 10_000))

    async def change(self, sale: Sale) -> None:
        """The gate has another title from now on."""
        sale.changed = True
        url = f"http://127.0.0.1:{self.port}/api/v1/paygates/{sale.gate['id']}"
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            await self.buyer.ask("PUT", url, body={"title": f"another {self.random.random()}"})

    async def act(self, sale: Sale, chosen: Random) -> None:
        """One of what may happen to it."""
        kind = chosen.choice(("present", "present", "present", "fail", "enrich", "way", "way", "watch", "change"))
        if kind == "present":
            task = self.present(sale)
            await asyncio.wait({task}, timeout=chosen.choice((0.05, 0.5, 2)))
        elif kind == "fail":
            await self.fail(sale)
        elif kind == "enrich":
            await self.enrich(sale)
        elif kind == "way":
            sale.way = chosen.choice((*_WAYS, "", "", ""))
            sale.is_blind = chosen.random() < 0.6
        elif kind == "watch":
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self.watch(sale)
        elif chosen.random() < 0.3:
            await self.change(sale)

    # What befalls all.

    async def reorganise(self, chosen: Random) -> None:
        """Blocks are gone with what was in them: some, or one in which a payment failed, or one that held a payment.

        In the place of the last the money goes elsewhere.
        """
        kind, sale, depth = chosen.choice(("failed", "failed", "paid", "any")), None, chosen.randint(1, DEPTH_MAX)
        failed = self.rows("hub.db", "SELECT block_number FROM settlements WHERE state = 'FAILED'")
        if kind == "failed" and failed:
            (first,) = chosen.choice(failed)
        elif kind == "paid":
            first, sale = None, chosen.choice(self.sales)
        else:
            first = None

        def back(chain: ChainUnderTest) -> None:
            height, raws, lowest = int(chain.rpc.call("eth_blockNumber"), 16), [], first
            if sale is not None:
                found = chain.rpc.call("eth_getLogs", {"fromBlock": "0x0", "topics": [_USED, None, sale.nonce]})
                if found:
                    lowest, faucet = int(found[0]["blockNumber"], 16), chain.wallets.faucet
                    nonce = int(chain.rpc.call("eth_getTransactionCount", faucet.address, hex(lowest - 1)), 16)
                    data = self._spending(chain, sale, 10_000)
                    raws = [chain.transaction(faucet, USDC_ADDRESS, data, nonce=nonce)[0]]
            lowest = height - depth + 1 if lowest is None else lowest
            if max(self.floor, height - WATCHED_MAX) < lowest <= height:
                take_back(chain, height - lowest + 1, *raws)
                self.seen["reorganisation" + (" with the money gone" if raws else f" {kind}")] += 1

        async with self.mining:
            await self.on_chain(back)

    async def befall(self, chosen: Random) -> None:
        kind = chosen.choice(("reorganise",) * 5 + ("look",) * 3 + ("late", "clock", "hub", "gateway"))
        self.seen[kind] += 1
        if kind == "reorganise":
            await self.reorganise(chosen)
        elif kind == "look":
            self.look_now()
        elif kind == "late":
            self.be_late()
        elif kind == "clock":
            self.ahead_ms = chosen.choice((0, 0, 65_000))
        elif kind == "hub":
            await self.restart_hub(chosen)
        else:
            await self.restart_gateway(chosen)

    def look_now(self) -> None:
        """Time goes by: whatever is followed is due."""
        self.write("UPDATE purchases SET follow_ms = 1 WHERE follow_ms IS NOT NULL")

    def be_late(self) -> None:
        """By the gateway's clock no request that is under way can be heard by the hub any more."""
        self.write("UPDATE purchases SET attempt_ms = attempt_ms - 100000 WHERE state = 'CLAIMED'")

    def write(self, statement: str) -> None:
        with closing(sqlite3.connect(self.folder / "gateway.db", timeout=20)) as books, books:
            books.execute(statement)

    def rows(self, name: str, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / name, timeout=20)) as books:
            return books.execute(statement).fetchall()

    async def play(self, count: int, steps: int) -> None:
        """So many sales at once, each with so many acts, and what holds afterwards."""
        wallets = payers(self.chain, count, seed="tries")
        for wallet in wallets:  # each has what its payment takes, and no more
            self._drain_to(wallet, 10_000)
        self.chain.rpc.call("anvil_mine", "0x2")
        self.floor = int(self.chain.rpc.call("eth_blockNumber"), 16)
        for wallet in wallets:
            await self.sell(wallet, self._drawn())

        async def one(sale: Sale, chosen: Random) -> None:
            if chosen.random() < 0.7:
                await self.fail(sale)
            for _ in range(steps):
                await self.act(sale, chosen)
                await asyncio.sleep(chosen.choice((0, 0.05, 0.2)))

        async def all_of_them(chosen: Random) -> None:
            while not acting.done():
                await asyncio.sleep(chosen.choice((0.1, 0.2, 0.4)))
                await self.befall(chosen)

        acting = asyncio.gather(*(one(sale, self._drawn()) for sale in self.sales))
        await asyncio.gather(acting, all_of_them(self._drawn()))
        await self.heal()
        await self.quiet()
        await self.judge()
        for name, times in self.seen.items():
            came(f"in a story of tries: {name}", times)

    def _drain_to(self, wallet: TestWallet, left: int) -> None:
        spent = new_payment(
            self.chain, signer=wallet, value=self.chain.balance(wallet.address) - left, pay_to="0x" + "99" * 20
        )
        signature = bytes.fromhex(spent.body["paymentPayload"]["payload"]["signature"][2:])
        self.chain.send_and_wait(
            self.chain.wallets.faucet, USDC_ADDRESS, transfer_calldata(spent.authorization, signature)
        )

    def _drawn(self) -> Random:
        return Random(self.random.random())

    # What holds.

    async def heal(self) -> None:
        """Nothing fails any more; the hub and the gateway may have been in the middle of a restart."""
        for sale in self.sales:
            sale.way = ""
        self.ahead_ms = 0
        await self._gateway.aclose()
        await self._hub.aclose()
        await self.start_hub()
        await self.start_gateway()
        await asyncio.sleep(0.5)  # what was heard is known by now
        self.be_late()
        self.patch.setattr(recovery, "_NOT_TOLD_MS", 1_500)

    async def quiet(self) -> None:
        """Nothing is under way, and what is followed was looked at since."""
        calm, left = 0, []
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                while calm < 4:
                    left = self._under_way()
                    calm = 0 if left else calm + 1
                    if not left:
                        self.look_now()
                    await self.on_chain(lambda chain: chain.rpc.call("evm_mine"))
                    await asyncio.sleep(0.3)
        except TimeoutError:
            raise AssertionError(left) from None

    def _under_way(self) -> list[Any]:
        found = self.rows(
            "gateway.db",
            "SELECT nonce, state FROM purchases"
            " WHERE state = 'CLAIMED' OR follow_ms = 1 OR (state = 'LIVE' AND confirmed = 0)",
        )
        for row in self.rows("hub.db", "SELECT nonce, state, block_number, block_hash FROM settlements"):
            _, state, number, block_hash = row
            if state not in {"CONFIRMED", "FAILED"}:
                found.append(row)
            elif number is not None:
                block = self.chain.rpc.call("eth_getBlockByNumber", hex(number), False)
                if block is None or block["hash"] != block_hash:
                    found.append(row)
        return found

    async def honour(self, carried: dict[str, str]) -> None:
        """The operator's part: a hub that trusts no gateway tells none of tries between which the gate has changed."""
        networks = {NETWORK: NetworkSettings(NETWORKS[NETWORK], (self.chain.url,), asset_name=self.chain.token_name)}
        settings = settings_for(self.chain.url, self.folder / "gateway.db", role=Role.GATEWAY, networks=networks)
        for (nonce,) in self.rows("gateway.db", "SELECT nonce FROM purchases WHERE state = 'PARKED'"):
            sale = next(one for one in self.sales if one.nonce == nonce)
            assert (sale.changed, self.trusts) == (True, False), sale
            self.seen[f"parked, {'paid' if nonce in carried else 'unpaid'}"] += 1
            if nonce in carried:
                order = {"gate": sale.gate["slug"], "transaction": carried[nonce], "nonce": nonce}
                assert "done" in await honour_payment(settings, order)

    async def judge(self) -> None:
        carried = {nonce for _, nonce, _, _ in transfers_of_signers(self.chain, 0)}
        hashes = dict(self.rows("hub.db", "SELECT nonce, transaction_hash FROM settlements"))
        await self.honour({nonce: hashes[nonce] for nonce in carried})
        held = {
            row[0]: row[1:]
            for row in self.rows(
                "gateway.db",
                purchases_and_calls("nonce, state, granted, remaining, attempt, failure, calls"),
            )
        }
        for sale in self.sales:
            row = held.get(sale.nonce, (None, 0, 0, 0, None, 0))
            state, granted, remaining, *_, calls = row
            said = (sale, row, sale.nonce in carried)
            self.seen[f"end {state} {'paid' if sale.nonce in carried else 'unpaid'}"] += 1
            assert (sale.nonce in carried) == (state == "LIVE"), said
            if state == "LIVE":
                assert granted == CREDITS, said
                assert calls == granted - remaining, said
            assert sale.served <= calls <= CREDITS, said
        reached = [one.header("x-request-id") for one in self.target.requests]
        assert len(reached) == len(set(reached))
        paid = [authorization_in(sale.payment) for sale in self.sales if sale.nonce in carried]
        refused = [authorization_in(sale.payment) for sale in self.sales if sale.nonce not in carried]
        await assert_nothing_lost(self.folder, self.chain, paid=paid, refused=refused)


@asynccontextmanager
async def tries_of(
    folder: Path, chain: ChainUnderTest, target: RecordingTarget, seed: int, patch: pytest.MonkeyPatch
) -> AsyncIterator[Tries]:
    """Hub and gateway with a proxy between them; the seed says whether it trusts the gateway, and is two."""
    patch.setattr(recovery.PurchaseRecovery, "interval_seconds", 0.1)
    for waiting in ("hub.api.requests", "gateway.call.state"):
        patch.setattr(f"tollkeeper.{waiting}.SETTLE_WAIT_SECONDS", WAIT_SECONDS)
    chain.rpc.call("anvil_mine", hex(DEPTH_MAX))
    async with AsyncExitStack() as stack:
        where: list[Tries] = []
        between = await stack.enter_async_context(run_hostile_hub(lambda: where[0].hub_url))
        buyer = await stack.enter_async_context(Buyer(chain.wallets.buyer))
        tries = Tries(
            folder, chain, target, Random(seed), seed % 2 == 0, seed % 4 >= 2, free_port(), between, buyer, patch
        )
        where.append(tries)
        between.settling, between.verifying = tries.way, tries.verify
        stack.push_async_callback(tries.end)
        await tries.start_hub()
        await tries.start_gateway()
        yield tries
