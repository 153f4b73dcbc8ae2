"""Every boundary where a gateway waits for its database and its hub, before and after it, with every kind of fault.

It sells, refuses, finishes what nobody asks for any more, follows what it sold, gives credits back, transfers for a fee
and honours by hand. Whatever happens there: one signature buys once, the books agree with the chain, nobody is served
who did not pay (F1 to F8, F13 to F15, F19).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.besides import count, log_in, spend_by_token, spend_of_wallet, upload
from tests.faults.gateway_site import CREDITS, PRICE, GatewaySite, Signed, at_home, until_told
from tests.faults.striking import Case, cases
from tests.gateway.hostile_hub import Forward, pass_on
from tests.gateway.test_honouring import relay
from tests.hub.faulty_database import Kind, Moment
from tests.hub.hub_under_test import TestPayment, new_payment
from tests.hub.test_unknown_outcomes import relay as carry_out_by_a_stranger
from tollkeeper.core.x402.version1 import encode_header
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.serving import StartError

Act: TypeAlias = Callable[[GatewaySite, Case], Awaitable[None]]


async def start(site: GatewaySite, case: Case) -> None:
    """The gateway starts anew, and then sells."""
    signed = await site.sign()
    site.gateway.end()
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await site.until(signed)
    await site.bought_once(signed, case, deaths)


async def sell(site: GatewaySite, case: Case) -> None:
    """A payment buys, and its first call is served."""
    signed, deaths = await site.sign(), site.gateway.deaths
    site.gateway.prepare(case)
    await site.until(signed)
    await site.bought_once(signed, case, deaths)


async def sell_to_the_patient(site: GatewaySite, case: Case) -> None:
    """The hub's answer was lost, and the buyer shows the same payment again, and waits."""
    signed, deaths = await _lost(site, reaches_hub=True), site.gateway.deaths
    site.gateway.prepare(case)
    waiting = asyncio.create_task(site.until(signed))
    await asyncio.sleep(0.2)
    site.hub.is_down = False
    await waiting
    await site.bought_once(signed, case, deaths)


async def give_back(site: GatewaySite, case: Case) -> None:
    """A call was refused because nobody knew whether its credit was taken: it is there again soon after."""
    signed = await site.sign()
    lost = Case("grant_purchase", Moment.AFTER, Kind.ERROR)
    site.gateway.prepare(lost)
    assert await site.call(signed) is None
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await site.until(signed)
    await site.bought_once(signed, case, deaths, cut=2)  # it, and the next one, which may be on its way


async def spend_held(site: GatewaySite, case: Case) -> None:
    """A purchase that is remembered is spent: its call is in the journal, and is found there where nobody knew."""
    signed = await site.sign(credits=9)
    for _ in range(3):
        await site.until(signed)
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await site.until(signed)
    await site.come(case, deaths)
    site.paid.append(signed.authorization)
    left = 9 - 4 - (1 if case.kind is Kind.CRASH else 0)
    await site.until_sale(signed, lambda *sale: left <= sale[4] <= 9 - 4)


async def refuse(site: GatewaySite, case: Case) -> None:
    """The payer's money is gone when the hub is asked to settle, and back when the same payment is shown again."""
    wallet = site.wallet()
    signed, deaths = await site.sign(wallet), site.gateway.deaths

    async def drain(_request: web.Request, forward: Forward) -> web.StreamResponse:
        if site.chain.balance(wallet.address):
            spent = new_payment(site.chain, signer=wallet, pay_to="0x" + "99" * 20)
            await asyncio.to_thread(carry_out_by_a_stranger, site.chain, spent)
        return await forward()

    site.hub.settling = drain
    site.gateway.prepare(case)
    refused = await site.until(signed, 402)
    assert refused.error_code == "INSUFFICIENT_FUNDS", refused.body
    while not site.gateway.has_come(case):
        assert (await site.until(signed, 402)).error_code == "INSUFFICIENT_FUNDS"
    await site.come(case, deaths)
    site.hub.settling = pass_on
    site.chain.mint(wallet.address, PRICE)
    await site.until(signed)
    site.paid.append(signed.authorization)
    await site.charged_once(signed, case)


async def finish(site: GatewaySite, case: Case) -> None:
    """The hub's answer was lost, and the buyer is gone: recovery finds out."""
    signed, deaths = await _lost(site, reaches_hub=True), site.gateway.deaths
    site.gateway.prepare(case)
    site.hub.is_down = False
    await granted_alone(site, signed, case, deaths)


async def granted_alone(site: GatewaySite, signed: Signed, case: Case, deaths: int) -> None:
    """Its credits are there, though nobody asks; then somebody does."""
    await site.until_sale(signed, lambda state, *_: state == "LIVE")
    await site.until(signed)
    await site.bought_once(signed, case, deaths)


async def give_up(site: GatewaySite, case: Case) -> None:
    """The hub never heard of it, and its request expires; the buyer comes back later with the same payment."""
    signed, deaths = await _lost(site, reaches_hub=False), site.gateway.deaths
    site.gateway.prepare(case)
    site.expire(signed)
    site.hub.is_down = False
    await site.until_sale(signed, lambda state, *_: state == "FAILED")
    assert site.sale(signed)[1] == "never_sent"
    await site.until(signed)
    await site.bought_once(signed, case, deaths)


async def _lost(site: GatewaySite, *, reaches_hub: bool) -> Signed:
    """A payment whose settle answer, or request, was lost, and whose buyer is gone. The hub is down from then on."""
    signed = await site.sign()

    async def lose(request: web.Request, forward: Forward) -> web.StreamResponse:
        if reaches_hub:
            await forward()
        site.hub.is_down, site.hub.settling = True, pass_on
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    site.hub.settling = lose
    assert await site.call(signed) is None
    assert site.sale(signed)[0] == "CLAIMED"
    return signed


async def trust(site: GatewaySite, case: Case) -> None:
    """A sale on trust, whose payment is mined later."""
    signed, deaths = await _trusted(site), site.gateway.deaths
    await mined_through(site, signed, case, deaths)


async def mined_through(site: GatewaySite, signed: Signed, case: Case, deaths: int) -> None:
    """Its payment is mined, and the sale no longer on trust."""
    site.gateway.prepare(case)
    site.chain.rpc.call("evm_setAutomine", True)
    site.chain.rpc.call("evm_mine")
    await site.until_sale(signed, lambda _state, _failure, confirmed, *_: confirmed == 1)
    await site.bought_once(signed, case, deaths)


async def lose_trust(site: GatewaySite, case: Case) -> None:
    """A sale on trust, whose payer makes the payment worthless before it is mined."""
    signed, deaths = await _trusted(site), site.gateway.deaths
    assert site.hub_process is not None
    site.hub_process.signal(signal.SIGSTOP)  # else it sends the transaction again
    receipt = site.rows("SELECT transaction_hash FROM purchases WHERE nonce = ?", signed.authorization.nonce)
    site.chain.rpc.call("anvil_dropTransaction", receipt[0][0])
    site.chain.rpc.call("evm_setAutomine", True)
    await asyncio.to_thread(site.cancel, signed)
    site.gateway.prepare(case)
    site.hub_process.signal(signal.SIGCONT)
    await void_again(site, signed, case, deaths)


async def _trusted(site: GatewaySite) -> Signed:
    signed = await site.sign(site.wallet(), assumeValid=True)
    site.chain.rpc.call("evm_setAutomine", False)
    await site.until(signed)
    assert site.sale(signed)[2] == 0
    return signed


async def follow(site: GatewaySite, case: Case) -> None:
    """It is time to look at a sale again."""
    signed, deaths = await site.sign(), site.gateway.deaths
    await site.until(signed)
    site.gateway.prepare(case)
    site.look_now(signed)
    await site.looked(signed)
    await site.bought_once(signed, case, deaths)


async def take_back(site: GatewaySite, case: Case) -> None:
    """A reorganisation takes a sale's payment away, and its payer makes it worthless on the other branch."""
    signed, deaths = await site.sign(site.wallet()), site.gateway.deaths
    checkpoint = site.chain.rpc.call("evm_snapshot")
    await site.until(signed)
    assert site.hub_process is not None
    site.hub_process.signal(signal.SIGSTOP)
    site.chain.rpc.call("evm_revert", checkpoint)
    await asyncio.to_thread(site.cancel, signed)
    site.chain.rpc.call("anvil_mine", "0x2")
    site.gateway.prepare(case)
    site.hub_process.signal(signal.SIGCONT)
    site.look_now(signed)
    await void_again(site, signed, case, deaths)


async def void_again(site: GatewaySite, signed: Signed, case: Case, deaths: int) -> None:
    """What is left of its credits is worth nothing; who shows the payment again may pay another."""
    await site.come(case, deaths)
    site.look_now(signed)  # else it waits half a minute for what it was not told
    await site.until_sale(signed, lambda state, *_: state == "VOID")
    assert (await site.until(signed, 402)).error_code == "CREDITS_EXHAUSTED"
    site.refused.append(signed.authorization)


async def restore(site: GatewaySite, case: Case) -> None:
    """The target fails, at a gate that gives the credit back for it."""
    await _restored(site, case, calls_before=0)


async def restore_held(site: GatewaySite, case: Case) -> None:
    """As `restore`, of a purchase that is remembered, whose calls are in the journal."""
    await _restored(site, case, calls_before=2)


async def _restored(site: GatewaySite, case: Case, calls_before: int) -> None:
    signed = await site.sign(targetUrl="http://127.0.0.1:1/", onFailure="restore")
    for _ in range(calls_before):
        await site.until(signed, 502)
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await site.until(signed, 502)
    while calls_before and not site.gateway.has_come(case):
        await site.until(signed, 502)
    await site.come(case, deaths)
    site.paid.append(signed.authorization)
    taken = "SELECT COUNT(*) FROM calls c JOIN purchases p ON p.id = c.purchase_id WHERE p.nonce = ? AND c.state != ?"
    (consumed,) = site.rows(taken, signed.authorization.nonce, "RESTORED")[0]
    assert site.sale(signed)[3:] == (CREDITS, CREDITS - consumed)
    # Where nobody could know, or the process died, a credit is consumed; a restored one is there again (contract 4.5).
    assert consumed <= (1 if case.kind is not Kind.DUPLICATE else 0)


async def transfer(site: GatewaySite, case: Case) -> None:
    """A transfer: refused while the payer has nothing, made later, and told as often as it is asked for."""
    wallet = site.wallet()
    wanted = new_payment(site.chain, signer=wallet, value=2 * PRICE, pay_to="0x" + "88" * 20)
    deaths = await _deaths(site)
    ask = partial(_ask_transfer, site, wanted)
    site.gateway.prepare(case)
    refused = await until_told(ask, 400)
    assert refused.error_code == "INSUFFICIENT_FUNDS"
    if site.gateway.has_come(case):
        await site.come(case, deaths)
    site.chain.mint(wallet.address, PRICE)
    made = await until_told(ask, 200)
    await site.come(case, deaths)
    assert (made.json()["success"], (await until_told(ask, 200)).json()["transaction"]) == (
        True,
        made.json()["transaction"],
    )
    site.paid.append(wanted.authorization)


async def _deaths(site: GatewaySite) -> int:
    await site.gateway.url()
    return site.gateway.deaths


async def _ask_transfer(site: GatewaySite, wanted: TestPayment) -> Answer | None:
    payment = wanted.body["paymentPayload"]
    body = {"network": payment["network"], **payment["payload"]}
    headers = {"X-Payment": encode_header(payment)}
    return await site.ask("POST", site.url + "/api/v1/transfer", body=body, headers=headers)


async def honour(site: GatewaySite, case: Case) -> None:
    """A stranger carried it out: refused, and granted once by hand, however often the operator has to ask."""
    # To an address of its own: apart, the hub knows no purchase for what reached one that it pays, and says so.
    signed, deaths = await site.sign(paymentAddress="0x" + "55" * 20), site.gateway.deaths
    transaction = await asyncio.to_thread(relay, site.chain, signed.header)
    assert (await site.until(signed, 402)).error_code == "NONCE_ALREADY_USED"
    await honour_through(site, case, signed, transaction, deaths)


async def honour_through(site: GatewaySite, case: Case, signed: Signed, transaction: str, deaths: int) -> None:
    """The operator asks until the sale is there, and again: then the order was carried out before."""
    site.gateway.prepare(case)
    async with asyncio.timeout(60):
        while True:
            await site.gateway.url()
            try:
                told = await site.honour(signed, transaction)
            except StartError:  # it died over the order: ask again
                continue
            if "done" in told:
                break
            await asyncio.sleep(0.05)
    await site.come(case, deaths)
    await site.gateway.url()
    assert (await site.honour(signed, transaction))["done"]["isRepeated"] is True
    assert site.sale(signed) == ("LIVE", None, 1, CREDITS, CREDITS)
    site.honoured.append(signed.authorization)


# What a process waits for once, as it starts, and what besides sales it waits for from time to time.
STARTING: Final = (
    "retired_token_keys",
    "lost_gates",
    "join_nodes",
    "interrupt_calls",
    "cut_all_uploads",
    "newest",
    "eth_chainId",
    "eth_getCode",
    "eth_call",
    "eth_blockNumber",
    "recall",
    "/supported",
    "follow_sooner",
    "cut_left_files",
    "cut_uploads",
    "mark_of_database",
    "void_rest",
    "forget",
    "_forget_sums",
    "by_slug",
)
# A PayGate's own, an upload's that failed, and what a facilitator settles that did not before: nothing was paid yet.
MANAGING: Final = frozenset({"create", "forget_upload", "learn"})
# What is done, and through which boundaries, in the order in which they come.
ACTS: Final[dict[str, tuple[Act, tuple[str, ...]]]] = {
    "start": (start, STARTING),
    "sell": (
        sell,
        ("spend_batch", "/verify", "claim_purchase", "/settle", "grant_purchase", "add", "end_calls"),
    ),
    "sell to the patient": (sell_to_the_patient, ("by_id", "spend_batch")),
    "spend held": (spend_held, ("spend_batch",)),
    "give back": (give_back, ("give_back",)),
    "refuse": (refuse, ("/verify", "/payments", "claim_purchase", "/settle", "shown_in", "fail")),
    "finish": (finish, ("in_flight", "/payments", "/settle", "grant_purchase")),
    "give up": (give_up, ("in_flight", "/payments", "fail")),
    "trust": (trust, ("unconfirmed", "/payments", "confirm")),
    "lose trust": (lose_trust, ("unconfirmed", "/payments", "void_unpaid")),
    "follow": (follow, ("to_follow", "/payments", "follow")),
    "take back": (take_back, ("to_follow", "/payments", "void_unpaid")),
    "restore": (restore, ("restore_call",)),
    "restore held": (restore_held, ("restore_call",)),
    "honour": (
        honour,
        (
            "by_slug",
            "eth_chainId",
            "eth_getBlockByNumber",
            "eth_getTransactionReceipt",
            "by_payment",
            "pay_to",
            "honour",
        ),
    ),
    "transfer": (transfer, ("/verify", "/transfer", "/payments")),
}


# What is asked of the database by other proofs than a header, and besides sales.
BESIDES: Final[dict[str, tuple[Act, tuple[str, ...]]]] = {
    "spend by token": (spend_by_token, ("spend_batch",)),
    "spend of wallet": (spend_of_wallet, ("spend_of_payer", "spend_batch")),
    "log in": (
        log_in,
        ("log_in", "rotate_refresh_token", "read_session", "read_user", "end_session"),
    ),
    "upload": (upload, ("begin_upload", "find", "create", "cut_upload", "keep_until", "find_file")),
    "count": (count, ("add",)),
}


async def strike(site: GatewaySite, acts: dict[str, tuple[Act, tuple[str, ...]]], kind: Kind, *moments: Moment) -> None:
    """A fault of that kind at each boundary of each act; nothing is lost by any."""
    for name, (act, boundaries) in acts.items():
        for case in cases(boundaries, kind):
            if case.moment in moments:
                try:
                    await act(site, case)
                except BaseException as error:
                    error.add_note(f"{name}: {case}")
                    raise
    await site.nothing_lost()


def assert_all_known(site: GatewaySite, *acts: dict[str, tuple[Act, tuple[str, ...]]]) -> None:
    """Nothing else is waited for."""
    known = {boundary for group in acts for _, boundaries in group.values() for boundary in boundaries}
    assert site.gateway.seen <= {*known, *STARTING, *MANAGING}


@pytest.mark.timeout(300)
async def test_an_error_at_any_boundary_of_a_gateway_loses_nothing_and_nothing_else_is_waited_for(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with at_home(tmp_path, embedded_chain) as site:
        await strike(site, ACTS, Kind.ERROR, Moment.AFTER)
        assert_all_known(site, ACTS)


@pytest.mark.timeout(300)
async def test_an_error_at_any_boundary_of_logins_uploads_and_other_proofs_loses_and_doubles_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with at_home(tmp_path, embedded_chain) as site:
        await strike(site, BESIDES, Kind.ERROR, Moment.AFTER)
        assert_all_known(site, BESIDES, ACTS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_a_gateway_killed_at_any_boundary_of_a_sale_has_sold_once_after_its_restart(
    tmp_path: Path, embedded_chain: ChainUnderTest, moment: Moment
) -> None:
    async with at_home(tmp_path, embedded_chain) as site:
        await strike(site, {"sell": ACTS["sell"]}, Kind.CRASH, moment)
        assert site.gateway.starts == len(ACTS["sell"][1]) + 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_whoever_claimed_a_payment_is_told_its_token_where_the_database_failed_its_grant(
    tmp_path: Path, embedded_chain: ChainUnderTest, moment: Moment
) -> None:
    """Else who may show the token only has no way to what he paid for (contract 4.3)."""
    async with at_home(tmp_path, embedded_chain) as site:
        signed = await site.sign(creditBinding="token")
        url, case = signed.gate["accessUrl"], Case("grant_purchase", moment, Kind.ERROR)
        site.gateway.prepare(case)
        refused = await site.buyer.ask("GET", url, headers={"X-Payment": signed.header})
        assert (refused.status, refused.error_code) == (503, "UNAVAILABLE")
        proof = {"X-Credit-Token": refused.headers["x-credit-token"]}
        await until_told(partial(site.ask, "GET", url, headers=proof), 200)
        site.paid.append(signed.authorization)
        await site.nothing_lost()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*ACTS, *BESIDES])
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_every_boundary_of_a_gateway_ends_as_it_should(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str, kind: Kind
) -> None:
    async with at_home(tmp_path, embedded_chain) as site:
        await strike(site, {name: (ACTS | BESIDES)[name]}, kind, *Moment)
