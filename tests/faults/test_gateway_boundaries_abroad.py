"""The same boundaries where the facilitator is a stranger's: its word is not enough, and a node is asked.

It knows neither keys nor status. A payment that it carried out buys once, with one signature; one that it never saw is
open until it can be carried out no more, and its payer is never told to pay again before that (contract 4.3, 4.4; F19).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.gateway_site import PATIENCE_SECONDS, GatewaySite, Signed, abroad
from tests.faults.striking import Case
from tests.faults.test_gateway_boundaries import ACTS as ACTS_AT_HOME
from tests.faults.test_gateway_boundaries import (
    Act,
    assert_all_known,
    granted_alone,
    honour_through,
    mined_through,
    strike,
    void_again,
)
from tests.gateway.foreign_facilitator import hands_over, honest
from tests.hub.faulty_database import Kind, Moment
from tollkeeper.sandbox.buyer import Answer

ASKED: Final = Case("/settle", Moment.AFTER, Kind.CRASH)
NEVER_ASKED: Final = Case("/settle", Moment.BEFORE, Kind.CRASH)


async def sell(site: GatewaySite, case: Case) -> None:
    """A payment buys where the facilitator was asked; where a fault came before that, its payer may make it void."""
    signed, deaths = await site.sign(), site.gateway.deaths
    site.gateway.prepare(case)
    buying = asyncio.create_task(_until_answered(site, signed))
    await site.come(case, deaths)
    await _end(site, signed, case, buying)


async def _end(site: GatewaySite, signed: Signed, case: Case, buying: asyncio.Task[Answer]) -> None:
    """Bought, if the facilitator knows of it; else nothing is said until the payer gives up."""
    await site.until_sale(signed, lambda state, *_: state is not None)  # a verification may have to be given up first
    await asyncio.wait({buying}, timeout=2)
    used = signed.authorization
    if await asyncio.to_thread(site.chain.is_used, used.payer, used.nonce):
        assert (await buying).status == 200
        site.paid.append(used)
        await site.charged_once(signed, case)
        return
    assert not buying.done()
    assert site.sale(signed)[0] == "CLAIMED"
    await asyncio.to_thread(site.cancel, signed)
    assert (await buying).error_code == "NONCE_ALREADY_USED"
    assert site.sale(signed)[0] == "FAILED"
    site.refused.append(used)


async def _until_answered(site: GatewaySite, signed: Signed) -> Answer:
    async with asyncio.timeout(90):
        while (answer := await site.call(signed)) is None:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    return answer


async def finish(site: GatewaySite, case: Case) -> None:
    """The gateway died as the facilitator answered, and the buyer is gone: recovery looks at the chain."""
    signed = await _left(site, ASKED)
    deaths = site.gateway.deaths + 1
    site.gateway.prepare(case)
    await granted_alone(site, signed, case, deaths)


async def give_up(site: GatewaySite, case: Case) -> None:
    """It died before it asked, and the payer makes the payment worthless."""
    signed = await _left(site, NEVER_ASKED)
    deaths = site.gateway.deaths + 1
    await asyncio.to_thread(site.cancel, signed)
    site.gateway.prepare(case)
    await site.until_sale(signed, lambda state, *_: state == "FAILED")
    await site.come(case, deaths)
    assert (await site.until(signed, 402)).error_code == "NONCE_ALREADY_USED"
    site.refused.append(signed.authorization)


async def _left(site: GatewaySite, crash: Case) -> Signed:
    """A payment whose gateway died, and does not run."""
    signed = await site.sign()
    site.gateway.prepare(crash)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not site.gateway.has_come(crash):  # as in `_claimed`
            assert await site.call(signed) is None
    await site.gateway.until_come(crash)
    assert site.sale(signed)[0] == "CLAIMED"
    return signed


async def _claimed(site: GatewaySite, signed: Signed) -> None:
    """Presented until it is claimed: a node's answer of before, told twice, may keep the first call from that."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while site.sale(signed)[0] is None:
            assert await site.call(signed) is None


async def park(site: GatewaySite, case: Case) -> None:
    """Somebody else carried it out: left to the operator, who honours it."""
    assert site.foreign is not None
    signed, deaths = await site.sign(), site.gateway.deaths
    site.foreign.sender = site.chain.wallets.faucet
    site.gateway.prepare(case)
    await _claimed(site, signed)
    # Where nobody heard the answer, the transaction is somebody else's for sure once the request has expired.
    site.expire(signed)
    await site.until_sale(signed, lambda state, *_: state == "PARKED")
    await site.come(case, deaths)
    site.foreign.sender = site.chain.wallets.relayer
    assert await site.call(signed) is None
    await _honour(site, signed)


async def _honour(site: GatewaySite, signed: Signed) -> None:
    block = site.chain.rpc.call("eth_getBlockByNumber", "latest", False)
    told = await site.honour(signed, block["transactions"][-1])
    assert "done" in told, told
    site.honoured.append(signed.authorization)


async def honour(site: GatewaySite, case: Case) -> None:
    """The operator honours what was parked."""
    assert site.foreign is not None
    signed, deaths = await site.sign(), site.gateway.deaths
    site.foreign.sender = site.chain.wallets.faucet
    await _claimed(site, signed)
    site.expire(signed)
    await site.until_sale(signed, lambda state, *_: state == "PARKED")
    site.foreign.sender = site.chain.wallets.relayer
    block = site.chain.rpc.call("eth_getBlockByNumber", "latest", False)
    await honour_through(site, case, signed, block["transactions"][-1], deaths)


async def trust(site: GatewaySite, case: Case) -> None:
    """A sale on trust, whose payment is mined later."""
    signed, deaths = await _trusted(site), site.gateway.deaths
    await mined_through(site, signed, case, deaths)


async def lose_trust(site: GatewaySite, case: Case) -> None:
    """A sale on trust, whose transaction nobody mines, and whose payer makes it worthless."""
    signed, deaths = await _trusted(site), site.gateway.deaths
    ((transaction,),) = site.rows("SELECT transaction_hash FROM purchases WHERE nonce = ?", signed.authorization.nonce)
    site.chain.rpc.call("anvil_dropTransaction", transaction)
    site.chain.rpc.call("evm_setAutomine", True)
    site.gateway.prepare(case)
    await asyncio.to_thread(site.cancel, signed)
    await void_again(site, signed, case, deaths)


async def _trusted(site: GatewaySite) -> Signed:
    assert site.foreign is not None
    signed = await site.sign(assumeValid=True)
    site.chain.rpc.call("evm_setAutomine", False)
    site.foreign.settling = hands_over
    await site.until(signed)
    site.foreign.settling = honest
    assert site.sale(signed)[2] == 0
    return signed


# What comes when a chain is looked at for a payment.
LOOKING: Final = (
    "eth_call",
    "eth_getBlockByNumber",
    "eth_getLogs",
    "eth_getTransactionReceipt",
    "eth_getTransactionByHash",
)
ACTS: Final[dict[str, tuple[Act, tuple[str, ...]]]] = {
    "sell": (sell, ("spend_batch", "/verify", "claim_purchase", "/settle", *LOOKING, "grant_purchase")),
    "finish": (finish, ("in_flight", "pay_to", *LOOKING, "grant_purchase")),
    "give up": (give_up, ("in_flight", "pay_to", "eth_call", "fail")),
    "park": (park, ("eth_getTransactionByHash", "name", "park")),
    "honour": (honour, ("by_payment", "pay_to", "honour")),
    "trust": (trust, ("unconfirmed", "pay_to", *LOOKING, "confirm")),
    "lose trust": (lose_trust, ("unconfirmed", "pay_to", "void_unpaid")),
}


@pytest.mark.timeout(300)
async def test_an_error_at_any_boundary_before_a_stranger_loses_nothing_and_nothing_else_is_waited_for(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with abroad(tmp_path, embedded_chain) as site:
        await strike(site, ACTS, Kind.ERROR, Moment.AFTER)
        assert_all_known(site, ACTS, ACTS_AT_HOME)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_a_gateway_killed_at_any_boundary_of_a_sale_before_a_stranger_has_sold_once(
    tmp_path: Path, embedded_chain: ChainUnderTest, moment: Moment
) -> None:
    async with abroad(tmp_path, embedded_chain) as site:
        await strike(site, {"sell": ACTS["sell"]}, Kind.CRASH, moment)
        assert site.gateway.starts == len(ACTS["sell"][1]) + 1


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_every_boundary_before_a_stranger_ends_as_it_should(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str, kind: Kind
) -> None:
    async with abroad(tmp_path, embedded_chain) as site:
        await strike(site, {name: ACTS[name]}, kind, *Moment)
