"""The boundaries of a hub that believes two nodes: what it waits for at either, before and after, with every fault.

Beside what `test_boundaries` strikes, the second node is asked whether it shows what the first one did: a success, a
failure, a signer's nonce. Whatever happens to either, each payment ends as one success or one refusal (F1 to F5, F13 to
F15; decision 0022). Nodes that lie are `test_lies_at_boundaries`'.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.client import PRICE, assert_settled_once, pay, present
from tests.faults.counts import came
from tests.faults.striking import Case, Victim, cases, faulty_hub
from tests.faults.test_boundaries import (
    BOUNDARIES,
    STARTING,
    Through,
    finish_through,
    left_alone,
    settle_through,
)
from tests.faults.test_recovery_boundaries import until_come
from tests.hub.faulty_database import Kind, Moment
from tests.hub.hub_under_test import TestPayment, new_payment
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallet

FIRST, SECOND = 0, 1
# What the second node is asked where a transfer is to be believed.
CONFIRMING: Final = ("eth_getTransactionReceipt", "eth_getBlockByNumber", "eth_blockNumber")
# What a failure is drawn from, at each node by itself, once its receipt shows one.
PROVING: Final = (
    "eth_getTransactionReceipt",
    "eth_call",
    "eth_getBlockByNumber",
    "eth_getTransactionCount",
    "eth_getLogs",
    "eth_getTransactionByHash",
)
# A start asks each node who it is, and both where a lane is to jump.
PROBING: Final = ("eth_chainId", "eth_getCode", "eth_call")
OPENING: Final = ("eth_getTransactionCount", "next_nonce_of", "open_lane")
# And what else comes meanwhile.
FAILING: Final = ("list_unfinished", "transactions_of", "move_all")
BELIEVING: Final = ("list_unfinished", *CONFIRMING, "move_all")


def outrun(chain: ChainUnderTest, number: int) -> TestPayment:
    """A payment that a stranger's transaction carries out, which will lie in the pool before ours.

    Each is another payer's: whoever makes us pay for what reverts is suspended.
    """
    payer = derive_wallet(f"payer {number}", seed="two nodes")
    chain.mint(payer.address, PRICE)
    chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(chain, signer=payer)
    signature = bytes.fromhex(payment.body["paymentPayload"]["payload"]["signature"][2:])
    chain.send(chain.wallets.faucet, USDC_ADDRESS, transfer_calldata(payment.authorization, signature))
    return payment


async def mined_through(hub: Victim, chain: ChainUnderTest, case: Case) -> None:
    """What waits is mined, and the hub, which is about to look, meets the fault."""
    await hub.rested()
    hub.prepare(case)
    chain.rpc.call("evm_setAutomine", True)
    chain.rpc.call("evm_mine")
    await hub.until_come(case)
    came(f"{case.kind.value} at a boundary before two nodes")


async def fail_through(directory: Path, chain: ChainUnderTest, chosen: list[Case], *, nodes: int = 2) -> Victim:
    """For each case a payment under way that a stranger carries out first; each is refused once that is proven."""
    nonce = chain.nonce(chain.wallets.relayer)
    refused = []
    async with faulty_hub(directory, *nodes * [chain.url]) as hub, aiohttp.ClientSession() as http:
        for number, case in enumerate(chosen):
            payment, key = outrun(chain, number), f"key.{number}"
            assert await present(http, await hub.url(), payment, key=key, wait_seconds=0) is None
            await mined_through(hub, chain, case)
            assert (await pay(await hub.url(), payment, key=key))["success"] is False, case
            refused.append(payment.authorization)
        await assert_nothing_lost(directory, chain, paid=[], refused=refused)
    assert chain.nonce(chain.wallets.relayer) == nonce + len(refused)
    return hub


async def believe_through(directory: Path, chain: ChainUnderTest, chosen: list[Case], *, nodes: int = 2) -> Victim:
    """For each case a payment that is mined when nobody asks for it: recovery believes two nodes."""

    async def as_it_is_mined(hub: Victim, _payment: TestPayment, _key: str, case: Case) -> None:
        await mined_through(hub, chain, case)

    return await left_alone(directory, chain, chosen, as_it_is_mined, new_payment, nodes)


async def start_through(directory: Path, chain: ChainUnderTest, chosen: list[Case], *, nodes: int = 2) -> Victim:
    """For each case a start that finds its signer's nonce moved on elsewhere, as two nodes must show."""
    before = chain.balance(chain.wallets.owner.address)
    relayer, payments = chain.wallets.relayer, []
    nonce = chain.nonce(relayer)
    async with faulty_hub(directory, *nodes * [chain.url]) as hub:
        for number, case in enumerate(chosen):
            await hub.url()
            await hub.ended()
            chain.send(relayer, relayer.address, b"", gas=21_000)
            hub.prepare(case)
            await until_come(hub, case)
            payments.append(payment := new_payment(chain))
            assert (await pay(await hub.url(), payment, key=f"key.{number}"))["success"] is True, case
        await assert_settled_once(await hub.url(), directory, chain, payments, before)
    assert chain.nonce(relayer) == nonce + 2 * len(payments)
    return hub


# What is done, and which boundaries of it are struck: of the database and the first node, and of the second one.
OF_TWO: Final[dict[str, tuple[Through, tuple[str, ...], tuple[str, ...]]]] = {
    "settle": (partial(settle_through, nodes=2), BOUNDARIES[settle_through], CONFIRMING),
    "finish": (partial(finish_through, nodes=2), BOUNDARIES[finish_through], ()),
    "believe": (believe_through, BELIEVING, CONFIRMING),
    "fail": (fail_through, (*PROVING, *FAILING), PROVING),
    "start": (start_through, (*PROBING, *OPENING), (*PROBING, "eth_getTransactionCount")),
}


def cases_of_two(name: str, *kinds: Kind) -> list[Case]:
    """All of them."""
    _, first, second = OF_TWO[name]
    return [*cases(first, *kinds, node=FIRST), *cases(second, *kinds, node=SECOND)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["fail", "start"])
async def test_an_error_at_the_second_of_two_nodes_loses_nothing_and_nothing_else_is_asked_of_it(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str
) -> None:
    through, _, second = OF_TWO[name]
    hub = await through(tmp_path, embedded_chain, [Case(second[-1], Moment.AFTER, Kind.ERROR, SECOND)])
    # A busy machine may take as long as a transaction that is not mined waits until it is sent again, to every node.
    besides = {*STARTING, *CONFIRMING, *PROBING, "eth_sendRawTransaction"}
    assert {*second} <= hub.chaoses[SECOND].methods <= {*second, *besides}


async def test_a_hub_killed_or_left_alone_while_the_second_node_confirms_settles_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chosen = [Case(CONFIRMING[0], Moment.AFTER, kind, SECOND) for kind in (Kind.ERROR, Kind.CRASH)]
    hub = await settle_through(tmp_path, embedded_chain, chosen, nodes=2)
    assert hub.starts == 2
    assert hub.chaoses[SECOND].methods <= {*CONFIRMING, *STARTING, *PROBING}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OF_TWO)
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_every_boundary_before_two_nodes_ends_as_it_should(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str, kind: Kind
) -> None:
    await OF_TWO[name][0](tmp_path, embedded_chain, cases_of_two(name, kind))
