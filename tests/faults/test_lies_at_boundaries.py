"""One of two nodes lies wherever it is asked: nothing is told that is not so, and nothing is lost once it is honest.

While it lies, a payment is what it is on the chain, or nobody knows yet, or was refused before anything was signed:
such a refusal moves nothing, and the same payment is good afterwards (security A-15; decision 0022). Faults of nodes
that do not lie are `test_boundaries_of_two_nodes`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.client import PRICE, assert_handed_out_once, pay, present, public_status
from tests.faults.counts import came
from tests.faults.lying import (
    OF_BLOCKS,
    OF_CALLS,
    OF_ENDS,
    OF_HEIGHTS,
    OF_NONCES,
    OF_NOTHING,
    OF_PRICES,
    OF_PROOFS,
    OF_READS,
    OF_RECEIPTS,
    OF_REVERTED,
    OF_SENDS,
    Lie,
    Told,
)
from tests.faults.striking import Victim, faulty_hub
from tests.faults.test_boundaries_of_two_nodes import FIRST, SECOND, outrun
from tests.hub.chaos import ChaosNode, run_chaos
from tests.hub.hub_under_test import TestPayment, new_payment

# How long a lie lasts once it was told: many polls of recovery.
LASTS_SECONDS: Final = 0.6
# A node that was overruled comes after the others for a minute, and may be overruled anew before it can lie about this.
TOLD_WITHIN_SECONDS: Final = 240


@dataclass
class Scene:
    """A hub of two nodes, and what became of its payments."""

    hub: Victim
    nodes: list[ChaosNode]
    chain: ChainUnderTest
    paid: list[TestPayment] = field(default_factory=list)
    refused: list[TestPayment] = field(default_factory=list)

    def is_used(self, payment: TestPayment) -> bool:
        """On the chain, whatever nodes say."""
        return self.chain.is_used(payment.authorization.payer, payment.authorization.nonce)

    async def left_pending(self) -> TestPayment:
        """A payment under way, of which nothing is mined yet."""
        payment = new_payment(self.chain)
        async with aiohttp.ClientSession() as http:
            assert await present(http, await self.hub.url(), payment, wait_seconds=0) is None
        return payment

    async def is_told(self, told: Told, payment: TestPayment, *statuses: str) -> bool:
        """Was the lie told, for a while, before the payment's end? Meanwhile everybody was shown one of these."""
        until, loop = None, asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while until is None or loop.time() < until:
                status = await public_status(await self.hub.url(), payment)
                assert status in statuses
                if until is None and (told.times or status != "pending"):
                    until = loop.time() + LASTS_SECONDS
                await asyncio.sleep(0.05)
        return told.times > 0

    def resume(self) -> None:
        """What waits is mined, and from now on everything at once."""
        self.chain.rpc.call("evm_setAutomine", True)
        self.chain.rpc.call("evm_mine")


# Whether the lie was told: who said of itself that it is no node of this chain is not asked for a while.
Act: TypeAlias = Callable[[Scene, ChaosNode, Lie], Awaitable[bool]]


async def settle(scene: Scene, node: ChaosNode, lie: Lie) -> bool:
    """A payment is settled."""
    payment = new_payment(scene.chain)
    told = Told(node, lie, lie.make(scene.chain, payment))
    async with aiohttp.ClientSession() as http:
        answer = await present(http, await scene.hub.url(), payment, key=payment.authorization.nonce)
    assert answer is None or answer["success"] is scene.is_used(payment), answer
    assert await public_status(await scene.hub.url(), payment) != "failed"
    node.calm()
    assert (await pay(await scene.hub.url(), payment))["errorReason"] in {None, "duplicate_settlement"}
    await assert_handed_out_once(await scene.hub.url(), payment)
    scene.paid.append(payment)
    return told.times > 0


async def wait(scene: Scene, node: ChaosNode, lie: Lie) -> bool:
    """A payment's transaction waits to be mined, and is."""
    scene.chain.rpc.call("evm_setAutomine", False)
    payment = await scene.left_pending()
    is_told = await scene.is_told(Told(node, lie, lie.make(scene.chain, payment)), payment, "pending")
    scene.resume()
    for _ in range(5):
        assert await public_status(await scene.hub.url(), payment) in {"pending", "success"}
        await asyncio.sleep(0.1)
    node.calm()
    assert (await pay(await scene.hub.url(), payment))["success"] is True
    scene.paid.append(payment)
    return is_told


async def fail(scene: Scene, node: ChaosNode, lie: Lie) -> bool:
    """A stranger carries the payment out before our transaction does, which reverts."""
    payment = outrun(scene.chain, len(scene.refused))
    async with aiohttp.ClientSession() as http:
        assert await present(http, await scene.hub.url(), payment, wait_seconds=0) is None
    told = Told(node, lie, lie.make(scene.chain, payment))
    scene.resume()
    is_told = await scene.is_told(told, payment, "pending", "failed")
    node.calm()
    assert (await pay(await scene.hub.url(), payment))["success"] is False
    scene.refused.append(payment)
    return is_told


OF_FAILURES: Final = (
    *(*OF_NOTHING, *OF_REVERTED, *OF_CALLS, *OF_READS),
    *(*OF_BLOCKS, *OF_HEIGHTS, *OF_NONCES, *OF_PROOFS),
)
# What is done, at which node, and what it says meanwhile.
ACTS: Final[dict[str, tuple[Act, int, Sequence[Lie]]]] = {
    "settle, first": (
        settle,
        FIRST,
        [*OF_CALLS, *OF_PRICES, *OF_SENDS, *OF_RECEIPTS, *OF_BLOCKS, *OF_HEIGHTS, *OF_ENDS],
    ),
    "settle, second": (settle, SECOND, [*OF_RECEIPTS, *OF_BLOCKS, *OF_HEIGHTS, *OF_ENDS]),
    "wait, first": (wait, FIRST, [*OF_NOTHING, *OF_BLOCKS, *OF_NONCES]),
    "fail, first": (fail, FIRST, OF_FAILURES),
    "fail, second": (fail, SECOND, OF_FAILURES),
}


@asynccontextmanager
async def two_nodes(directory: Path, chain: ChainUnderTest) -> AsyncIterator[Scene]:
    """Of one chain, and in the end its books."""
    before = chain.balance(chain.wallets.owner.address)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(run_chaos(chain.url)) for _ in (FIRST, SECOND)]
        hub = await stack.enter_async_context(faulty_hub(directory, *(node.url for node in nodes)))
        scene = Scene(hub, nodes, chain)
        yield scene
        await assert_nothing_lost(
            directory,
            chain,
            paid=[payment.authorization for payment in scene.paid],
            refused=[payment.authorization for payment in scene.refused],
        )
    moved = PRICE * (len(scene.paid) + len(scene.refused))
    assert chain.balance(chain.wallets.owner.address) == before + moved


async def lie_through(scene: Scene, name: str, lies: Sequence[Lie]) -> None:
    """Each of them."""
    act, node, _ = ACTS[name]
    for lie in lies:
        try:
            async with asyncio.timeout(TOLD_WITHIN_SECONDS):
                while not await act(scene, scene.nodes[node], lie):  # noqa: ASYNC110 - until it is asked
                    await asyncio.sleep(1)
        except BaseException as error:
            error.add_note(f"{name}: {lie.method}, {lie.name}")
            raise
        came("lie of one of two nodes")


async def test_a_lie_of_one_of_two_nodes_makes_neither_success_nor_failure(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with two_nodes(tmp_path, embedded_chain) as scene:
        for name in ("settle, first", "fail, second"):
            lies = [lie for lie in ACTS[name][2] if lie in (*OF_NOTHING, *OF_RECEIPTS)]
            await lie_through(scene, name, lies[:1])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ACTS)
async def test_no_lie_of_one_of_two_nodes_at_any_boundary_makes_success_or_failure(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str
) -> None:
    async with two_nodes(tmp_path, embedded_chain) as scene:
        await lie_through(scene, name, ACTS[name][2])
