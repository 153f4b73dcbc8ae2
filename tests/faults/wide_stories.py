"""Random stories in which the chain, the clocks and the hub's books go wrong, too, and terms change in the middle.

Blocks are taken back, transactions dropped, base fees rise; clocks of programs are put ahead or back and the chain's
ahead; the hub's database is set back to a backup; a gate is priced anew or deleted while it is
paid for; a payment is cancelled, its money moved away, or a stranger carries it out and the operator honours it. Who is
so contested is judged by the chain: sold where our signer carried it out or the operator honoured it, and else not.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.references.running import official_facilitator
from tests.chains.batching import plant
from tests.chains.cancelling import cancellation_calldata
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.chains.rpc_client import RpcClient
from tests.chains.solana_node import WALLETS
from tests.faults.aftermath import authorization_in, transfers_of_signers
from tests.faults.clocked import running_under
from tests.faults.counts import came
from tests.faults.gateway_site import PRICE, alone, for_long
from tests.faults.set_back import back_up, hub_of, restore
from tests.faults.stories import Act, EvmStory, Sale, SolanaStory, way_to
from tests.faults.striking import Victim
from tests.gateway.gateway_process import gateway_settings
from tests.gateway.hostile_hub import HostileHub, run_hostile_hub
from tests.gateway.ordering import honour_payment
from tests.hub.hub_under_test import NETWORK, new_payment, settle_body
from tests.ports import free_port
from tollkeeper.core.evm.batches import Via
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.x402.version1 import EvmPayload, decode_payment_header
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import TestWallet, derive_wallet, fee_payers_of

THIEF: Final = "0x" + "98" * 20
DEPTH_MAX: Final = 6
_PAYERS: Final = 90
_CONTRACT_MICRO: Final = 2_000_000
_STORY_SECONDS: Final = 300
_AHEAD_SECONDS: Final = (-120, -20, 20, 70, 300, 0)
_JUMPS_MAX: Final = 3  # of the chain's time, so that no payment's time is over
_NORMAL_FEE_WEI: Final = 10_000_000
_KINDS: Final = (
    "apart",
    "apart of two nodes",
    "own",
    "own, beside Solana",
    "restored",
    "official",
)


class Official:
    """The official facilitator. While it waits two minutes for a transaction that no block holds it settles nothing."""

    def __init__(self, chain: ChainUnderTest) -> None:
        self._start = partial(official_facilitator, chain.url, chain.wallets.relayer.private_key_hex)
        self._running = ExitStack()
        self.url = ""

    def start(self) -> None:
        """Anew, where it runs."""
        self.close()
        self.url = self._running.enter_context(self._start()).url

    def close(self) -> None:
        """It runs no more."""
        self._running.close()


@dataclass(slots=True, kw_only=True)
class WideStory(EvmStory):
    """On anvil. `floor`: the block that is taken back no more; `clocks`: the files by which the programs' clocks go.

    `backs_up`: the hub's database is set back to backups. `official`: the official facilitator, where it is that:
    it sends nothing twice, so each of its payments is contested. `beside`: what is sold on Solana by the same program.
    """

    floor: int
    clocks: list[Path]
    backs_up: bool = False
    official: Official | None = None
    beside: SolanaStory | None = None
    payers: list[TestWallet] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    honoured: set[str] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    carried: set[str] = field(default_factory=set)
    jumps: int = 0
    reorganised: bool = False
    restored: bool = False
    mining: asyncio.Lock = field(default_factory=asyncio.Lock)

    def acts(self) -> list[Act]:
        transfers = [] if self.official else [self.transfer, self.pay_without_money]
        beside: list[Act] = [self.beside.buy, self.beside.buy, self.beside.hold] if self.beside else []
        return [self.spoil, self.spoil, self.change, self.front_run, *transfers, *beside]

    def faults(self) -> list[Act]:
        backups = [self.set_back, self.set_back] if self.backs_up else []
        chain = [self.reorganise, self.reorganise, self.hold]
        return [*EvmStory.faults(self), *chain, self.clock, self.jump, *backups]

    async def payment(self, gate: dict[str, Any], chosen: Random) -> str:
        challenge = await self.site.challenge(gate["accessUrl"], await self.bearer())
        if chosen.random() < 0.3:
            return self.site.buyer.sign(challenge, lambda wanted: replace(for_long(wanted), payer=self.contract))
        return Buyer(self.site.wallet()).sign(challenge, for_long)

    async def bearer(self) -> dict[str, str]:
        """Of the buyer; a new one each time, because by a clock that goes wrong no login lasts."""
        self._token = ""
        return await EvmStory.bearer(self)

    async def buy(self, chosen: Random, **fields: object) -> Sale:
        """As in every story; without links, which end by the clock."""
        granted = chosen.choice((1, 2, 3))
        gate = await self.gate(**{"credits": granted, "assumeValid": chosen.random() < 0.3, **fields})
        sale = Sale(gate, await self.payment(gate, chosen), granted, contested=self.official is not None)
        self.sales.append(sale)
        await self.calls(sale, chosen)
        came(f"sale in a wide story: {'trusted' if gate.get('assumeValid') else 'plain'}")
        return sale

    async def calls(self, sale: Sale, chosen: Random) -> list[Answer]:
        """Some calls of what it bought, at once."""
        headers = {"X-Payment": sale.header}
        first = min(sale.credits, chosen.choice((1, 1, 2, 3)))
        return await asyncio.gather(*(self.called(sale, headers) for _ in range(first)))

    async def called(self, sale: Sale, headers: dict[str, str]) -> Answer:
        """As in every story; who waits for the operator, because a stranger made the payment, is told so for ever."""
        parked = "SELECT 1 FROM purchases WHERE nonce = ? AND state = 'PARKED'"
        calling = asyncio.create_task(EvmStory.called(self, sale, headers))
        try:
            while not (await asyncio.wait({calling}, timeout=1))[0]:
                if sale.contested and self.site.rows(parked, self.nonce(sale.header)):
                    return Answer(503, {}, b"")
            return calling.result()
        finally:
            calling.cancel()

    async def replay(self, chosen: Random) -> None:
        """What bought here buys nothing elsewhere; what was refused here by the official facilitator may buy there."""
        sale = await self.buy(chosen)
        if self.official and not self.site.rows("SELECT 1 FROM purchases WHERE nonce = ?", self.nonce(sale.header)):
            return
        other = await self.gate(credits=1)
        answer, _ = await self.told("GET", other["accessUrl"], 402, headers={"X-Payment": sale.header})
        assert self.official or answer.error_code == "NONCE_ALREADY_USED", answer.body

    # What makes a sale contested.

    async def contested(self, chosen: Random, harm: Callable[[Sale, TestWallet], None]) -> Sale:
        """A sale whose payment that befalls before, while or after it is shown."""
        granted = chosen.choice((1, 2, 3))
        gate = await self.gate(credits=granted, assumeValid=chosen.random() < 0.4)
        wallet = self.site.wallet()
        challenge = await self.site.challenge(gate["accessUrl"])
        sale = Sale(gate, Buyer(wallet).sign(challenge, for_long), granted, contested=True)
        self.sales.append(sale)
        before, after = chosen.choice((0, 0, 0.02, 0.2)), chosen.choice((0, 0, 0.05, 0.3, 1))

        async def harming() -> None:
            await asyncio.sleep(after)
            async with self.mining:
                await asyncio.to_thread(harm, sale, wallet)

        async def calling() -> None:
            await asyncio.sleep(before)
            await self.calls(sale, chosen)

        await asyncio.gather(harming(), calling())
        return sale

    async def spoil(self, chosen: Random) -> None:
        """Its payer cancels a payment, or moves the money away."""
        kind = chosen.choice(("cancelled", "drained"))

        def harm(sale: Sale, wallet: TestWallet) -> None:
            with self.apart() as chain:
                self.send(chain, self.spoiling(chain, kind, sale, wallet))

        await self.contested(chosen, harm)
        came(f"payment in a wide story: {kind}")

    async def front_run(self, chosen: Random) -> None:
        """A stranger carries a payment out, and the operator honours it where our signer was not the first."""

        def harm(sale: Sale, wallet: TestWallet) -> None:
            with self.apart() as chain:
                self.send(chain, self.spoiling(chain, "front-run", sale, wallet))

        await self.contested(chosen, harm)
        came("payment in a wide story: front-run")

    def spoiling(self, chain: ChainUnderTest, kind: str, sale: Sale, wallet: TestWallet) -> bytes:
        """What the token is called with."""
        used = authorization_in(sale.header)
        if kind == "cancelled":
            return cancellation_calldata(chain, wallet, used.nonce)
        if kind == "front-run":
            payload = decode_payment_header(sale.header.encode()).payload
            assert isinstance(payload, EvmPayload)
            return transfer_calldata(used, payload.signature)
        spent = new_payment(chain, signer=wallet, value=max(1, chain.balance(wallet.address)), pay_to=THIEF)
        signature = bytes.fromhex(spent.body["paymentPayload"]["payload"]["signature"][2:])
        return transfer_calldata(spent.authorization, signature)

    @staticmethod
    def send(chain: ChainUnderTest, data: bytes) -> None:
        """From the faucet, whether it comes to anything or not, and sooner than others."""
        chain.send(chain.wallets.faucet, USDC_ADDRESS, data, max_priority_fee_per_gas=3_000_000_000)

    async def change(self, chosen: Random) -> None:
        """A gate is priced anew, gives other credits, or is deleted while it is paid for."""
        gate = await self.gate(credits=2)
        sale = Sale(gate, await self.payment(gate, chosen), 2, contested=True)
        self.sales.append(sale)
        url = f"{self.site.paygates}/{gate['id']}"
        kind = chosen.choice(("price", "credits", "deleted", "trust"))
        fields = {"price": {"price": "0.02"}, "credits": {"credits": 5}, "trust": {"assumeValid": True}}.get(kind)
        when = chosen.choice((0, 0.01, 0.05, 0.3))

        async def changing() -> None:
            await asyncio.sleep(when)
            if fields is None:
                self.deleted.add(gate["id"])
                await self.told("DELETE", url, 200, 204, 404)
            else:
                await self.told("PUT", url, 200, body=fields)

        await asyncio.gather(changing(), self.calls(sale, chosen))
        came(f"gate in a wide story: {kind}")

    # What fails.

    @contextmanager
    def apart(self) -> Iterator[ChainUnderTest]:
        """The chain by a connection of a thread's own."""
        with closing(RpcClient(self.site.chain.url)) as rpc:
            yield replace(self.site.chain, rpc=rpc)

    async def reorganise(self, chosen: Random) -> None:
        """Blocks are taken back, and what was in them is forgotten, or mined again, or somebody else is first."""
        depth = chosen.randint(1, DEPTH_MAX)
        kind = chosen.choice(("forgotten", "forgotten", "again", "cancelled", "front-run"))
        await self.site.gateway.url()
        if self.official and self.site.rows("SELECT 1 FROM purchases WHERE state = 'CLAIMED'"):
            kind = "again"  # for what is forgotten it waits two minutes, and settles nothing else
        late = [one for one in self.sales[-6:] if authorization_in(one.header).payer != self.contract]
        sale = chosen.choice(late) if late and kind in {"cancelled", "front-run"} else None
        async with self.mining:
            await asyncio.to_thread(self._take_back, depth, kind, sale)

    def _take_back(self, depth: int, kind: str, sale: Sale | None) -> None:
        with self.apart() as chain:
            height = int(chain.rpc.call("eth_blockNumber"), 16)
            depth = min(depth, height - self.floor)
            if depth < 1:
                return
            raws: list[str] = []
            if kind == "again":
                for number in range(height - depth + 1, height + 1):
                    mined = chain.rpc.call("eth_getBlockByNumber", hex(number), False)["transactions"]
                    raws += [chain.rpc.call("eth_getRawTransactionByHash", one) for one in mined]
            elif sale is not None:
                sale.contested = True
                wallet = next((one for one in self.payers if one.address == authorization_in(sale.header).payer), None)
                assert wallet is not None
                faucet = chain.wallets.faucet
                nonce = int(chain.rpc.call("eth_getTransactionCount", faucet.address, hex(height - depth)), 16)
                data = self.spoiling(chain, kind, sale, wallet)
                raws = [chain.transaction(faucet, USDC_ADDRESS, data, nonce=nonce)[0]]
            self.reorganised = True
            take_back(chain, depth, *raws)
        came(f"reorganisation of depth {depth}")
        came(f"reorganisation in a wide story: {kind}")

    async def hold(self, chosen: Random) -> None:
        """For a while no block is made, or one whose gas costs more than was offered; some transactions are dropped."""
        seconds, dears, drops = chosen.choice((0.3, 1, 3)), chosen.random() < 0.5, chosen.random() < 0.5
        drops = drops and not self.official  # it waits two minutes for its own, and meanwhile settles nothing
        async with self.mining:
            await asyncio.to_thread(self._mine, "evm_setAutomine", False)
            await asyncio.sleep(seconds)
            if drops:
                await asyncio.to_thread(self._drop)
            if dears:
                await asyncio.to_thread(self._mine, "anvil_setNextBlockBaseFeePerGas", hex(50 * _NORMAL_FEE_WEI))
                await asyncio.to_thread(self._mine, "evm_mine")
                await asyncio.sleep(seconds)
            await asyncio.to_thread(self._calm)
        came(f"held blocks in a story{', dear' if dears else ''}")

    def _mine(self, method: str, *given: Any) -> None:
        with self.apart() as chain:
            chain.rpc.call(method, *given)

    def _calm(self) -> None:
        with self.apart() as chain:
            chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(_NORMAL_FEE_WEI))
            chain.rpc.call("evm_setAutomine", True)
            chain.rpc.call("evm_mine")

    def _drop(self) -> None:
        with self.apart() as chain:
            relayer = chain.wallets.relayer.address.lower()
            for sender, waiting in chain.rpc.call("txpool_content")["pending"].items():
                if sender.lower() == relayer:
                    for one in waiting.values():
                        chain.rpc.call("anvil_dropTransaction", one["hash"])
                        came("dropped transaction")

    async def clock(self, chosen: Random) -> None:
        """A program's clock goes ahead or behind from now on, or is right again."""
        ahead = chosen.choice(_AHEAD_SECONDS)
        if self.clocks:
            chosen.choice(self.clocks).write_text(str(ahead), "utf-8")
            came(f"clock of a program: {ahead} s")

    async def jump(self, chosen: Random) -> None:
        """The chain's time goes ahead."""
        self.jumps += 1
        if self.jumps <= _JUMPS_MAX:
            async with self.mining:
                await asyncio.to_thread(self._mine, "evm_increaseTime", chosen.choice((30, 70, 200)))
                await asyncio.to_thread(self._mine, "evm_mine")
            came("the chain's time goes ahead")

    async def set_back(self, chosen: Random) -> None:
        """The hub's database is what it was a while ago."""
        assert isinstance(self.hub, Victim)
        books, backup = self.site.directory / "hub.db", self.site.directory / "backup" / "hub.db"
        await self.hub.url()
        await asyncio.to_thread(back_up, books, backup)
        await asyncio.sleep(chosen.choice((0.3, 1, 2.5)))
        self.restored = True
        await self.hub.between(partial(restore, books, backup))
        await self.hub.url()
        came("restored backup of a hub")

    # What holds at the end.

    async def heal(self) -> None:
        for clock in self.clocks:
            clock.write_text("0", "utf-8")
        async with self.mining:
            await asyncio.to_thread(self._calm)
        if self.official is not None:
            await asyncio.to_thread(self.official.start)

    async def decided(self) -> None:
        """Nothing is under way, at the hub neither; and sales were looked at since, also those that are used up."""
        await self._quiet()
        await self._looked_at()
        await self._honour()
        await self._looked_at()

    async def _looked_at(self) -> None:
        self.site.rows("UPDATE purchases SET follow_ms = 1 WHERE follow_ms IS NOT NULL")
        await self._quiet()
        self.carried = {nonce for _, nonce, _, _ in transfers_of_signers(self.site.chain, 0)}

    async def _quiet(self) -> None:
        calm, waits_for = 0, []
        try:
            while calm < 4:
                await self.site.gateway.url()
                if self.hub is not None:
                    await self.hub.url()
                waits_for = self._under_way()
                calm = 0 if waits_for else calm + 1
                async with self.mining:
                    await asyncio.to_thread(self._mine, "evm_mine")
                await asyncio.sleep(0.4)
        except asyncio.CancelledError:
            sys.stderr.write(f"the story waits for {waits_for}\n")
            raise

    def _under_way(self) -> list[Any]:
        found: list[Any] = self.site.rows(
            # A sale on trust that its hub forgot stands, and is waited for a day.
            "SELECT nonce, state FROM purchases WHERE state = 'CLAIMED' OR follow_ms = 1"
            " OR (state = 'PARKED' AND failure <> 'not_of_the_facilitators_signers')"
            " OR (state = 'LIVE' AND confirmed = 0 AND forgotten_ms IS NULL)"
        )
        for row in self.settlements():
            network, _, state, number, block_hash = row
            if state not in {"CONFIRMED", "FAILED"}:
                found.append(row)
            elif number is not None and network == NETWORK:
                block = self.site.chain.rpc.call("eth_getBlockByNumber", hex(number), False)
                if block is None or block["hash"] != block_hash:
                    found.append(row)
        return found

    def settlements(self) -> list[tuple[Any, ...]]:
        """Of the hub: network, nonce, state, and the block that it rests on."""
        for name in ("hub.db", "gateway.db"):
            path = self.site.directory / name
            if path.is_file():
                with closing(sqlite3.connect(path, timeout=20)) as connection:
                    return connection.execute(
                        "SELECT network, nonce, state, block_number, block_hash FROM settlements"
                    ).fetchall()
        return []

    async def _honour(self) -> None:
        """The operator honours what strangers carried out."""
        for sale in self.sales:
            used = authorization_in(sale.header)
            if not sale.contested or used.nonce.lower() in self.carried:
                continue
            transaction = self._foreign(used.nonce)
            if not transaction:
                continue
            self.foreign.add(used.nonce.lower())
            site = self.site
            settings = gateway_settings(site.directory, site.chain.url, "http://127.0.0.1:1", site.port)
            order = {"gate": sale.gate["slug"], "transaction": transaction, "nonce": used.nonce}
            answer = await honour_payment(settings, order)
            assert "done" in answer, (answer, sale)
            self.honoured.add(used.nonce.lower())
            came("honoured payment in a wide story")

    def _foreign(self, nonce: str) -> str:
        """The transaction of a stranger that carried it out, "" where there is none."""
        for log in self.site.chain.rpc.call(
            "eth_getLogs", {"address": USDC_ADDRESS, "fromBlock": "0x0", "toBlock": "latest", "topics": [_USED]}
        ):
            if log["topics"][2].lower() == nonce.lower():
                name: str = log["transactionHash"]
                return name
        return ""

    def judge_sale(self, sale: Sale, state: str | None, granted: int, remaining: int, calls: int) -> None:
        nonce = self.nonce(sale.header).lower()
        is_sold = nonce in self.carried or nonce in self.honoured
        if not is_sold and state == "LIVE" and self.restored and not self._is_known(nonce):
            told_of = "SELECT id, assume_valid FROM purchases WHERE nonce = ? AND forgotten_ms IS NOT NULL"
            ((name, is_trusted),) = self.site.rows(told_of, nonce)
            assert self.reorganised or is_trusted, sale  # else it was told that it had been made, and it was
            self.site.gone.append(name)
            came("sale whose payment is gone and forgotten by its hub")
            return
        if self.official is not None and self.reorganised and not is_sold:  # what it made is not followed
            kept = "SELECT id FROM purchases WHERE nonce = ? AND (state = 'LIVE' OR failure = 'gate_deleted')"
            if gone := [name for (name,) in self.site.rows(kept, nonce)]:
                self.site.gone += gone
                came("sale of a strange facilitator whose payment is gone")
                return
        if not sale.contested:
            assert nonce in self.carried, sale
            EvmStory.judge_sale(self, sale, state, granted, remaining, calls)
            return
        told = (sale, state, granted, remaining, calls)
        assert sale.served <= calls <= sale.served + sale.lost, told
        if sale.gate["id"] in self.deleted:
            assert is_sold or state != "LIVE", told
        else:
            assert is_sold == (state == "LIVE"), told
        if not is_sold and not sale.gate.get("assumeValid") and not self.reorganised:
            assert sale.served == 0, told

    def _is_known(self, nonce: str) -> bool:
        return nonce in {row[1].lower() for row in self.settlements()}

    async def nothing_lost(self) -> None:
        if self.restored:
            await self._remind()
        self.site.paid = [one.authorization for one in self.moved]
        self.site.refused = [authorization_in(one) for one in self.refused]
        for sale in self.sales:
            used = authorization_in(sale.header)
            if used.nonce.lower() in self.carried:
                self.site.paid.append(used)
            elif used.nonce.lower() in self.foreign:
                self.site.honoured.append(used)
            else:
                self.site.refused.append(used)
        await self.site.nothing_lost()
        if self.beside is not None:
            await self.beside.nothing_lost()

    def judge(self) -> None:
        EvmStory.judge(self)
        if self.beside is not None:
            self.beside.judge()

    async def _remind(self) -> None:
        """A hub adopts what it forgot once it is asked for it."""
        assert self.hub is not None
        known = {row[1].lower() for row in self.settlements()}
        signed = [decode_payment_header(one.header.encode()).payload for one in self.sales] + list(self.moved)
        for payload in signed:
            assert isinstance(payload, EvmPayload)
            used = payload.authorization
            if used.nonce.lower() in self.carried and used.nonce.lower() not in known:
                body = settle_body(self.site.chain, used, payload.signature) | {"confirm": True}
                body["paymentRequirements"] |= {"maxAmountRequired": str(used.value), "payTo": used.pay_to}
                answer = await self.site.buyer.ask("POST", await self.hub.url() + "/settle", body=body)
                assert (answer.status, answer.json()["success"]) == (200, True), (answer.body, used)
                came("forgotten payment that a hub adopts")


_USED: Final = "0x98de503528ee59b575ef0c0a2576a82497bfc029a5685b209e9ec333479b10a5"


@asynccontextmanager
async def wide_story(directory: Path, chain: ChainUnderTest, seed: int) -> AsyncIterator[WideStory]:
    """Its kind, its acts and what they meet are drawn from the seed."""
    random = Random(seed)
    kind = _KINDS[seed % len(_KINDS)]
    batches = random.random() < 0.5
    if batches:
        plant(chain, Via.BATCHER)
    changes: dict[str, Any] = {}
    contract = chain.plant_smart_wallet(chain.wallets.buyer.address)
    purse = [derive_wallet(f"payer {number}", seed="wide story") for number in range(_PAYERS)]
    for wallet in purse:
        chain.mint(wallet.address, PRICE)
    chain.mint(contract, _CONTRACT_MICRO)
    chain.rpc.call("anvil_mine", hex(DEPTH_MAX))
    floor = int(chain.rpc.call("eth_blockNumber"), 16)
    came(f"wide story: {kind}{', in batches' if batches else ''}")
    clocks = {name: directory / f"clock-{name}" for name in ("hub", "gateway")}
    async with AsyncExitStack() as stack:
        hub: Victim | None = None
        way: HostileHub | None = None
        facilitator_url, port = "", free_port()
        # Beside Solana each buyer keeps his login, which lasts by no clock that goes wrong.
        used = [] if "Solana" in kind else [clocks["gateway"]]
        node: SolanaNode | None = None
        if "Solana" in kind:
            fee_payers = fee_payers_of(chain.wallets.relayer.private_key)
            node = await stack.enter_async_context(SolanaNode(wallets=replace(WALLETS, fee_payers=fee_payers)))
            changes["beside"] = node.url
        official = Official(chain) if kind == "official" else None
        if official is not None:
            stack.callback(official.close)
            await asyncio.to_thread(official.start)
            way = await stack.enter_async_context(run_hostile_hub(lambda: official.url))
            facilitator_url = way.url
        elif not kind.startswith("own"):
            urls = [chain.url] * (2 if "two nodes" in kind else 1)
            options: dict[str, Any] = {"gateway_port": port, "batch_queue_depth": 1 if batches else 0}
            hub = await hub_of(stack, directory, *urls, clock=clocks["hub"], **options)
            way = await stack.enter_async_context(await way_to(hub))
            facilitator_url = way.url
            used.append(clocks["hub"])
        under = running_under(clocks["gateway"])
        site = await stack.enter_async_context(
            alone(directory, chain, facilitator_url, port=port, under=under, **changes)
        )
        site.changes, site.purse = changes, list(purse)
        beside = None if node is None else SolanaStory(site=site, random=random, node=node)
        yield WideStory(
            site=site,
            random=random,
            hub=hub,
            way=way,
            may_expire=kind == "official",
            seconds=_STORY_SECONDS,
            contract=contract,
            floor=floor,
            clocks=used,
            backs_up=kind == "restored",
            official=official,
            beside=beside,
            payers=purse,
        )
