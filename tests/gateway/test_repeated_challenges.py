"""Unpaid requests that come again in the same bytes: each answer is as right as the first (contract 4.1)."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.same_bytes import kept, request
from tests.gateway.test_leaving import shop
from tollkeeper.core.paygates.challenge import Profile


async def test_the_same_unpaid_request_gets_the_same_402_but_for_id_date_and_timestamp(market: Market) -> None:
    gate = await market.gate()
    async with kept(gate) as caller:
        answers, began = [], time.time()
        for _ in range(4):
            answers.append(await caller.ask(request(gate)))
            await asyncio.sleep(0.002)
        ids = {headers.pop("x-request-id") for _, headers, _ in answers}
        stamps = [body.pop("timestamp") for _, _, body in answers]
        assert len(ids) == len(set(stamps)) == 4
        assert stamps == sorted(stamps)
        dates = [parsedate_to_datetime(headers.pop("date")).timestamp() for _, headers, _ in answers]
        assert all(began - 2 < date <= time.time() for date in dates)
        assert all(answer == answers[0] for answer in answers)
        assert answers[0][0] == 402


async def test_an_update_shows_in_the_next_402(market: Market) -> None:
    gate = await market.gate(price="0.01")
    async with kept(gate) as caller:
        for price in ("0.02", "0.03"):
            for _ in range(3):
                await caller.ask(request(gate))
            changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"price": price})
            assert changed.status == 200, changed.body
            assert (await caller.ask(request(gate)))[2]["paymentRequired"]["amount"] == price


async def test_more_gates_than_are_kept_are_answered_each_by_its_own_terms(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.gateway.open_gate.CACHED_GATES_MAX", 2)
    gates = {f"0.0{number}": await market.gate(price=f"0.0{number}") for number in range(1, 5)}
    async with kept(gates["0.01"]) as caller:
        for _ in range(3):
            for price, gate in gates.items():
                for _ in range(2):
                    assert (await caller.ask(request(gate)))[2]["paymentRequired"]["amount"] == price


async def test_a_deleted_gate_is_not_asked_payment_for(market: Market) -> None:
    gate = await market.gate()
    async with kept(gate) as caller:
        for _ in range(3):
            assert (await caller.ask(request(gate)))[0] == 402
        assert (await market.ask("DELETE", f"/api/v1/paygates/{gate['id']}")).status < 300
        assert (await caller.ask(request(gate)))[0] == 404


@pytest.mark.parametrize(("method", "status"), [("GET", 402), ("HEAD", 402), ("DELETE", 405)])
async def test_each_method_keeps_its_own_answer(market: Market, method: str, status: int) -> None:
    gate = await market.gate()
    async with kept(gate) as caller:
        for _ in range(3):
            assert (await caller.ask(request(gate)))[0] == 402
            assert (await caller.ask(request(gate, method)))[0] == status


async def test_each_profile_keeps_its_own_shape(market: Market) -> None:
    gate = await market.gate()
    async with kept(gate) as caller:
        for _ in range(3):
            assert "accepts" in (await caller.ask(request(gate)))[2]
            letter = await caller.ask(request(gate, more='Accept: application/json;profile="x402-a"\r\n'))
            assert list(letter[2]) == ["x402"]


async def test_every_one_of_them_is_counted(market: Market) -> None:
    gate = await market.gate()
    async with kept(gate) as caller:
        for _ in range(20):
            await caller.ask(request(gate))
        counters = await market.counters(gate, lambda found: found["challenges"] == 20)
        assert counters["challenges"] == 20


@pytest.mark.sqlite_only("it sees statements by SQLite's trace")
async def test_a_402_reads_nothing_once_its_gate_is_in_memory(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    connect = sqlite3.connect

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **named)
        connection.set_trace_callback(said.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate()
        said.clear()
        async with kept(gate) as caller:
            assert (await caller.ask(request(gate)))[0] == 402
            assert any(gate["slug"] in one for one in said)  # what comes first at a gate that is not in memory
            said.clear()
            for profile in Profile:
                for number in range(3):  # none of these bytes came before, then the same once more
                    more = f'Accept: application/json;profile="{profile.value}"\r\nX-Number: {number}\r\n'
                    assert [(await caller.ask(request(gate, more=more)))[0] for _ in range(2)] == [402, 402]
            assert [one for one in said if gate["slug"] in one] == []
