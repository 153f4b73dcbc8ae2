"""What recovery does with rows and nodes that are not as they should be (security F1, F23)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import NETWORK, HubUnderTest, TestPayment, new_payment, run_hub
from tollkeeper.api import clock_ms
from tollkeeper.hub.settlement.recovery import FAILURES_ALERT
from tollkeeper.storage.engine.database import Statement, Steps, unit_of_work

SEND = "eth_sendRawTransaction"


@unit_of_work
def change(sql: str, **params: Any) -> Steps[None]:
    yield Statement(sql, params)


async def leave_pending(hub: HubUnderTest, chaos: ChaosNode, chain: ChainUnderTest, count: int) -> list[Any]:
    chaos.on(SEND, Act.CUT)
    payments = [new_payment(chain) for _ in range(count)]
    for payment in payments:
        answer = await hub.settle(payment, prefer="wait=0")
        while answer.code == "UNAVAILABLE":  # what was cut held something else up too: nothing was written
            answer = await hub.settle(payment, prefer="wait=0")
        assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
    chaos.calm()
    return payments


async def unsign(hub: HubUnderTest) -> None:
    """Leaves the only settlement as if the process had ended between claim and signature."""
    for undo in (
        "DELETE FROM raw_transactions",
        "UPDATE signer_lanes SET next_nonce = next_nonce - 1",
        "DELETE FROM settlement_events WHERE version > 1",
        "UPDATE settlements SET state = 'CLAIMED', version = 1, transaction_hash = ''",
    ):
        await hub.database.run(change(undo))


async def test_a_claim_that_was_never_signed_fails_and_may_be_presented_again(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    (payment,) = await leave_pending(chaos_hub, chaos, embedded_chain, 1)
    await unsign(chaos_hub)
    await chaos_hub.complete()
    assert await chaos_hub.status(payment) == "failed"
    assert (await chaos_hub.settle(payment)).body["success"] is True


async def test_a_row_that_cannot_be_judged_holds_up_no_other(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payments = await leave_pending(chaos_hub, chaos, embedded_chain, 5)
    poison = payments[2].authorization.nonce
    await chaos_hub.database.run(change("UPDATE settlements SET payment = '{}' WHERE nonce = :nonce", nonce=poison))
    for _ in range(2):
        await chaos_hub.complete()
    statuses = [await chaos_hub.status(payment) for payment in payments]
    assert statuses == ["success"] * 5  # the poison row too: its own transaction needs nothing that is broken


async def test_a_node_that_fails_during_a_pass_is_asked_again_in_the_next(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payments = await leave_pending(chaos_hub, chaos, embedded_chain, 3)
    chaos.on("eth_getTransactionReceipt", Act.CUT)
    await chaos_hub.complete()
    assert [await chaos_hub.status(payment) for payment in payments] == ["pending"] * 3
    chaos.calm()
    for _ in range(2):
        await chaos_hub.complete()
    assert [await chaos_hub.status(payment) for payment in payments] == ["success"] * 3


async def test_six_hundred_pending_settlements_are_finished_by_two_passes(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on(SEND, Act.CUT)

    async def leave(payment: TestPayment) -> None:
        answer = await chaos_hub.settle(payment, prefer="wait=0")
        while answer.code == "UNAVAILABLE":  # as in `leave_pending`
            answer = await chaos_hub.settle(payment, prefer="wait=0")

    await asyncio.gather(*(leave(new_payment(embedded_chain)) for _ in range(600)))
    chaos.calm()
    for _ in range(2):
        await chaos_hub.complete()
    rows = await chaos_hub.database.read(Statement("SELECT state, COUNT(*) AS n FROM settlements GROUP BY state"))
    assert [(row["state"], row["n"]) for row in rows] == [("CONFIRMED", 600)]


async def test_a_poison_row_is_set_aside_ever_longer_and_told_of_while_the_others_go_on(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    hub = chaos_hub
    payments = await leave_pending(hub, chaos, embedded_chain, 20)
    poison = payments[7]
    kept = "UPDATE settlements SET kind = :kind WHERE nonce = :nonce"
    await hub.database.run(change(kept, kind="gift", nonce=poison.authorization.nonce))
    with capture_logs() as logs:
        for _ in range(2):
            await hub.complete()
    aside = [line for line in logs if line["event"] == "settlement_set_aside"]
    assert [(line["failures"], line["log_level"]) for line in aside] == [(1, "error")]  # it is not tried again yet
    statuses = [await hub.status(payment) for payment in payments if payment is not poison]
    assert statuses == ["success"] * 19
    for _ in range(FAILURES_ALERT):
        await hub.database.run(change("UPDATE settlements SET retry_ms = 0"))
        await hub.complete()
    problem = f"{NETWORK}: 1 settlements cannot be worked on"
    assert (await hub.get("/readyz")).body["problems"] == [problem]
    sample = hub.hub.metrics.registry.get_sample_value
    assert sample("tollkeeper_hub_settlements_set_aside", {"network": NETWORK}) == 1
    await hub.database.run(change(kept, kind="purchase", nonce=poison.authorization.nonce))
    await hub.database.run(change("UPDATE settlements SET retry_ms = 0"))
    await hub.complete()
    assert await hub.status(poison) == "success"
    assert (await hub.get("/readyz")).body["problems"] == []


BROKEN = {
    "i6_what_is_mined_names_its_transaction": (
        "UPDATE settlements SET state = 'MINED', block_number = NULL WHERE nonce = :nonce",
        "UPDATE settlements SET state = 'SIGNED' WHERE nonce = :nonce",
    ),
    "i8_failed_has_a_proof": (
        "UPDATE settlements SET proof = 'expired' WHERE nonce = :nonce",
        "UPDATE settlements SET proof = NULL WHERE nonce = :nonce",
    ),
    "i9_signed_is_what_was_signed": (
        "UPDATE settlements SET transaction_hash = 'x' || transaction_hash WHERE nonce = :nonce",
        "UPDATE settlements SET transaction_hash = substr(transaction_hash, 2) WHERE nonce = :nonce",
    ),
    "i12_the_log_is_dense": (
        "UPDATE settlements SET version = version + 1 WHERE nonce = :nonce",
        "UPDATE settlements SET version = version - 1 WHERE nonce = :nonce",
    ),
    "i12_the_log_ends_where_the_row_is": (
        "UPDATE settlements SET state = 'BROADCAST' WHERE nonce = :nonce",
        "UPDATE settlements SET state = 'SIGNED' WHERE nonce = :nonce",
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
async def test_a_row_that_breaks_an_invariant_is_parked_and_told_of_at_once_while_the_others_go_on(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, rule: str
) -> None:
    hub = chaos_hub
    payments = await leave_pending(hub, chaos, embedded_chain, 5)
    broken = payments[2]
    breaking, mending = (Statement(sql, {"nonce": broken.authorization.nonce}) for sql in BROKEN[rule])
    await hub.database.run(one(breaking))
    whole = Statement("SELECT * FROM settlements WHERE nonce = :nonce", {"nonce": broken.authorization.nonce})
    (before,) = await hub.database.read(whole)
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    told = [line for line in logs if line["event"] == "settlement_breaks_an_invariant"]
    assert [(line["rule"], line["log_level"]) for line in told] == [(rule, "error")]
    assert [await hub.status(payment) for payment in payments if payment is not broken] == ["success"] * 4
    (after,) = await hub.database.read(whole)
    assert {**before, "failures": 0, "retry_ms": 0} == {**after, "failures": 0, "retry_ms": 0}  # nobody touched it
    assert (await hub.get("/readyz")).body["problems"] == [f"{NETWORK}: 1 settlements cannot be worked on"]
    await hub.database.run(one(mending))
    await hub.complete()
    assert await hub.status(broken) == "pending"  # until its time comes
    await hub.database.run(change("UPDATE settlements SET retry_ms = 0"))
    await hub.complete()
    assert await hub.status(broken) == "success"
    assert (await hub.get("/readyz")).body["problems"] == []


@unit_of_work
def one(statement: Statement) -> Steps[None]:
    yield statement


async def test_a_row_that_contradicts_the_chain_is_set_aside(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    """Our own transaction used the authorization, and what it moved is not what the row says."""
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    await hub.database.run(change("UPDATE settlements SET value = '1'"))
    embedded_chain.rpc.call("evm_mine")
    with capture_logs() as logs:
        await hub.complete()
    assert [line["event"] for line in logs if line["event"] == "settlement_set_aside"]
    assert await hub.status(payment) == "pending"


WRONG: dict[str, tuple[str, Any]] = {
    "no block": ("eth_getBlockByNumber", {"result": None}),
    "a block without time": ("eth_getBlockByNumber", {"result": {"number": "0x1"}}),
    "a block whose number is none": ("eth_getBlockByNumber", {"result": {"number": "0xzz", "timestamp": "0x1"}}),
    "code that is no bytes": ("eth_getCode", {"result": 5}),
    "code refused": ("eth_getCode", {"error": {"code": -32000, "message": "header not found"}}),
    "a call that did not run": ("eth_call", {"error": {"code": -32005, "message": "limit exceeded"}}),
    "a short word": ("eth_call", {"result": "0x01"}),
    "odd hex": ("eth_call", {"result": "0x0"}),
}


@pytest.mark.parametrize("case", WRONG)
async def test_an_answer_that_is_none_refuses_nobody_s_payment(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, case: str
) -> None:
    method, wrong = WRONG[case]

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": answer["id"], **wrong} if call["method"] == method else answer

    chaos.falsify = falsify
    answer = await chaos_hub.post("/verify", new_payment(embedded_chain).body)
    assert (answer.status, answer.code) == (503, "UNAVAILABLE")


async def test_a_simulation_that_runs_out_of_gas_is_a_refusal(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "eth_call" or "from" not in call["params"][0]:
            return answer
        return {"jsonrpc": "2.0", "id": answer["id"], "error": {"code": -32000, "message": "out of gas"}}

    chaos.falsify = falsify
    answer = await chaos_hub.settle(new_payment(embedded_chain))
    assert answer.reason == "invalid_exact_evm_transaction_simulation_failed"


async def test_a_node_without_a_tip_and_without_logs_still_settles(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] not in {"eth_maxPriorityFeePerGas", "eth_getLogs"}:
            return answer
        return {"jsonrpc": "2.0", "id": answer["id"], "error": {"code": -32601, "message": "method not found"}}

    chaos.falsify = falsify
    assert (await chaos_hub.settle(new_payment(embedded_chain))).body["success"] is True


async def test_a_clock_that_was_put_back_keeps_nothing_waiting(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    ahead_ms = embedded_chain.now() * 1000 - clock_ms() + 3_000_000  # the chain's own clock may be ahead, too
    async with run_hub(
        tmp_path,
        embedded_chain,
        rpc_url=chaos.url,
        now_ms=lambda: clock_ms() + ahead_ms,
        recovery_interval_seconds=0.1,
    ) as hub:
        payments = await leave_pending(hub, chaos, embedded_chain, 2)
        poison = change(
            "UPDATE settlements SET retry_ms = :ms, failures = 3 WHERE nonce = :nonce",
            ms=clock_ms() + ahead_ms + 3_000_000,
            nonce=payments[1].authorization.nonce,
        )
        ahead_ms = 0
        await hub.database.run(poison)
        for payment in payments:
            await hub.wait_for_status(payment, "success")
