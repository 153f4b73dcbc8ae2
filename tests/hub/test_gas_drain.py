"""Somebody tries to empty the hub's gas money: it stays within the budget, and honest payments go on (A-24)."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chains.abi import encode_call
from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.gas_drain import PRICE, Attacker, Request
from tests.hub.gateway_requests import DATA, TRUSTED, signed
from tests.hub.hub_under_test import NETWORK, Answer, HubUnderTest, new_payment, run_hub
from tests.hub.test_contract_wallets import ALWAYS_YES, HOSTILE
from tests.hub.test_gas import GAS_LIMIT
from tollkeeper.core.limits import PAYER_FAILURES_MAX
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet, derive_wallet
from tollkeeper.storage.engine.database import Statement

_AT_ONCE: Final = 64
_BLOCK_SECONDS: Final = 0.2
_STRANGERS_MAX: Final = 150  # settlements within the hour
_BUDGET: Final = 3 * _STRANGERS_MAX * GAS_LIMIT  # all of them are at one address, which gets half of what it leaves
_SALES_MAX: Final = 100
_MEMORY_MAX_BYTES: Final = 100 << 20
_FIRST_STRIKE: Final = PAYER_FAILURES_MAX + 5
_MOVERS: Final = [derive_wallet(f"whose money goes elsewhere {number}") for number in range(2)]
_THIEVES: Final = [derive_wallet(f"who pays nobody else {number}") for number in range(3)]
_OVERDRAWN: Final = derive_wallet("who pays fifty with the money for one")
_FICKLE: Final = ["0x" + f"{number:02x}" * 20 for number in range(0xD0, 0xD3)]


@dataclass
class Scene:
    """A hub, its chain, and who attacks it. One thread at a time speaks to the node; blocks come in time."""

    hub: HubUnderTest
    chain: ChainUnderTest
    attacker: Attacker
    sold: Counter[object] = field(default_factory=Counter)
    open_rows: list[int] = field(default_factory=list)
    _node: asyncio.Lock = field(default_factory=asyncio.Lock)
    _blocks: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, function: Any, *arguments: Any) -> Any:
        """The chain's client blocks, and the hub runs in this thread."""
        async with self._node:
            return await asyncio.to_thread(function, *arguments)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Blocks are made, and a gateway sells."""
        tasks = [asyncio.ensure_future(self._mine()), asyncio.ensure_future(self._sell())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _mine(self) -> None:
        while True:
            await asyncio.sleep(_BLOCK_SECONDS)
            async with self._blocks:
                await self.ask(self.chain.rpc.call, "evm_mine")

    async def _sell(self) -> None:
        unfinished = Statement("SELECT COUNT(*) AS n FROM settlements WHERE state NOT IN ('CONFIRMED', 'FAILED')")
        while self.sold.total() < _SALES_MAX:
            body = json.dumps(self.attacker.asking() | {"purchaseData": DATA}).encode()
            headers = signed(body, idempotency_key=f"claim-{self.sold.total()}.1")
            answer = await self.hub.send("POST", "/settle", data=body, headers=headers)
            self.sold[answer.status, answer.body.get("success")] += 1
            self.open_rows.append((await self.hub.database.read(unfinished))[0]["n"])
            await asyncio.sleep(0.5)

    async def settle(self, body: dict[str, Any], *, wait_seconds: int = 20) -> Answer:
        """As a stranger."""
        data = json.dumps(body).encode()
        return await self.hub.send("POST", "/settle", data=data, headers={"Prefer": f"wait={wait_seconds}"})

    async def outcome(self, body: dict[str, Any]) -> str:
        """What became of it; "unknown" where nothing was begun."""
        authorization = body["paymentPayload"]["payload"]["authorization"]
        path = f"/payments/{NETWORK}/{authorization['from']}/{authorization['nonce']}"
        while True:
            answer = await self.hub.get(path)
            status = "unknown" if answer.status == 404 else str(answer.body["status"])
            if status != "pending":
                return status
            await asyncio.sleep(_BLOCK_SECONDS)

    async def at_once(self, bodies: Iterable[dict[str, Any]]) -> list[Answer]:
        """All of them, so many at a time."""
        left, answers = iter(bodies), list[Answer]()

        async def worker() -> None:
            for body in left:
                answers.append(await self.settle(body))

        await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
        return answers

    async def cheap_ones(self, count: int) -> Counter[str]:
        """Bad settles of every kind, each told what is wrong with it; how many of each."""
        told: Counter[str] = Counter()
        wrong: Counter[object] = Counter()

        async def worker(requests: Iterator[Request]) -> None:
            for request in requests:
                answer = await self.hub.send("POST", "/settle", data=request.body)
                said = answer.reason if answer.status == 200 else answer.code
                told[request.kind] += 1
                if (answer.status, said) != request.told or answer.body.get("success") is True:
                    wrong[request.kind, answer.status, said] += 1

        requests = self.attacker.requests(count)
        await asyncio.gather(*(worker(requests) for _ in range(_AT_ONCE)))
        assert not wrong, wrong
        return told

    async def move_away(self, payer: TestWallet, count: int) -> None:
        """So many payments that the money covers, until it goes elsewhere right before them, in the same block."""
        attacker, chain = self.attacker, self.chain
        await self.ask(chain.rpc.call, "anvil_setBalance", payer.address, hex(10**18))
        minting = encode_call("mint(address,uint256)", payer.address, count * PRICE)
        await self.ask(chain.send, chain.wallets.faucet, USDC_ADDRESS, minting)
        while (held := await self.ask(chain.balance, payer.address)) < count * PRICE:  # noqa: ASYNC110 - of the node
            await asyncio.sleep(_BLOCK_SECONDS)
        async with self._blocks:
            call = encode_call("transfer(address,uint256)", chain.wallets.faucet.address, held)
            await self.ask(chain.send, payer, USDC_ADDRESS, call)
            bodies = [attacker.asking(signer=payer) for _ in range(count)]
            await asyncio.gather(*(self.settle(body, wait_seconds=0) for body in bodies))
        for body in bodies:
            assert await self.outcome(body) in {"failed", "unknown"}

    async def change_minds(self) -> None:
        """Contract wallets that say yes to whoever simulates, and no once that is in a block."""
        for _ in range(PAYER_FAILURES_MAX + 2):
            async with self._blocks:
                await self._say("yes")
                bodies = [self.attacker.asking(payer=wallet) for wallet in _FICKLE]
                await asyncio.gather(*(self.settle(body, wait_seconds=0) for body in bodies))
                await self._say("no")
            for body in bodies:
                assert await self.outcome(body) in {"failed", "unknown"}

    async def _say(self, word: str) -> None:
        code = ALWAYS_YES if word == "yes" else HOSTILE["returns another word"]
        for wallet in _FICKLE:
            await self.ask(self.chain.rpc.call, "anvil_setCode", wallet, code)

    async def failures(self, payer: str) -> int:
        """How often that payer has cost gas for nothing."""
        failed = "SELECT SUM(failures) AS n FROM payer_failures WHERE payer = :payer"
        return int((await self.hub.database.read(Statement(failed, {"payer": payer})))[0]["n"] or 0)

    async def moved(self) -> tuple[int, int, list[int]]:
        """Gas used for strangers, and for all; the nonces of everything that was signed."""
        rows = await self.hub.database.read(
            Statement(
                "SELECT r.hash, r.signer_nonce, COUNT(s.purchase_data) AS trusted FROM raw_transactions r "
                "JOIN settlement_slots l ON l.network = r.network AND l.signer = r.signer AND "
                "l.signer_nonce = r.signer_nonce JOIN settlements s ON s.id = l.settlement_id "
                "GROUP BY r.hash, r.signer_nonce ORDER BY r.signer_nonce"
            )
        )
        used = {False: 0, True: 0}
        for row in rows:
            receipt = await self.ask(self.chain.rpc.call, "eth_getTransactionReceipt", row["hash"])
            used[bool(row["trusted"])] += int(receipt["gasUsed"], 16)
        return used[False], sum(used.values()), [row["signer_nonce"] for row in rows]


def prepare(chain: ChainUnderTest) -> None:
    """Who attacks has a little money."""
    for wallet in _FICKLE:
        chain.mint(wallet, 100 * PRICE)
    for poor in (*_THIEVES, _OVERDRAWN):
        chain.mint(poor.address, PRICE)


def resident_bytes() -> int:
    """What this process holds: hub, callers and all."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def attack(scene: Scene, count: int) -> None:
    """The whole of it, of so many settles: first what is bad, and then what is good and nobody's business."""

    async def move_away_again_and_again() -> None:
        for _ in range(3):
            await scene.move_away(_MOVERS[0], _FIRST_STRIKE)
            await scene.move_away(_MOVERS[1], 4)

    async def overdraw() -> list[Answer]:
        return await scene.at_once([scene.attacker.asking(signer=_OVERDRAWN) for _ in range(50)])

    told, overdraft, *_ = await asyncio.gather(
        scene.cheap_ones(count), overdraw(), move_away_again_and_again(), scene.change_minds()
    )
    assert len(told) >= 20
    reasons = Counter(answer.reason for answer in overdraft)
    assert reasons.pop(None) == 1
    # What is simulated as the first is mined, its balance having been read before, fails there.
    assert set(reasons) <= {"insufficient_funds", "invalid_exact_evm_transaction_failed"}
    assert await scene.failures(_OVERDRAWN.address) == 0
    assert [await scene.failures(wallet) for wallet in _FICKLE] == [PAYER_FAILURES_MAX] * len(_FICKLE)
    # The first time costs as much as the payer's money covered at once; after that nothing is signed for it.
    assert [await scene.failures(wallet.address) for wallet in _MOVERS] == [_FIRST_STRIKE, PAYER_FAILURES_MAX]
    own = [scene.attacker.to_itself(_THIEVES[number % len(_THIEVES)]) for number in range(2 * _STRANGERS_MAX)]
    statuses = Counter(answer.status for answer in await scene.at_once(own))
    assert set(statuses) == {200, 503}
    refused = await scene.settle(scene.attacker.asking())
    assert (refused.status, refused.code) == (503, "UNAVAILABLE")
    before = scene.sold.total()
    async with asyncio.timeout(60):
        while scene.sold.total() < min(before + 3, _SALES_MAX):  # noqa: ASYNC110 - of answers over HTTP
            await asyncio.sleep(0.05)


async def drain(directory: Path, chain: ChainUnderTest, count: int) -> None:
    relayer = chain.wallets.relayer
    first = chain.nonce(relayer)
    prepare(chain)
    config = {"gas_budget_per_hour": _BUDGET}
    options = {"trusted_keys": TRUSTED, "config": config, "recovery_interval_seconds": 0.3}
    async with run_hub(directory, chain, **options) as hub:
        used = new_payment(chain)
        assert (await hub.settle(used)).body["success"] is True
        scene = Scene(hub, chain, Attacker(chain, used.asking(confirm=True)))
        chain.rpc.call("evm_setAutomine", False)
        before_bytes = resident_bytes()
        async with scene.going_on():
            await attack(scene, count)
            assert resident_bytes() - before_bytes < _MEMORY_MAX_BYTES
        await scene.ask(chain.rpc.call, "evm_mine")
        await hub.complete()
        assert set(scene.sold) == {(200, True)}
        by_strangers, by_all, nonces = await scene.moved()
        assert by_strangers <= _STRANGERS_MAX * GAS_LIMIT
        assert by_all <= _BUDGET
        assert nonces == list(range(first, first + len(nonces)))
        assert chain.nonce(relayer) == first + len(nonces)
        assert max(scene.open_rows) <= _STRANGERS_MAX + 1
        left = "SELECT COUNT(*) AS n FROM settlements WHERE state NOT IN ('CONFIRMED', 'FAILED')"
        assert [row["n"] for row in await hub.database.read(Statement(left))] == [0]


async def test_a_thousand_bad_settles_cost_no_more_than_the_budget_and_sales_go_on(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await drain(tmp_path, embedded_chain, 500)


@pytest.mark.long
async def test_ten_thousand_bad_settles_cost_no_more_than_the_budget_and_sales_go_on(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await drain(tmp_path, embedded_chain, 9_600)
