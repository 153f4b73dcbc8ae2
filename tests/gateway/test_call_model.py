"""Calls that end in every way at once, against the table of what becomes of a credit (contract 4.3, 4.5, 4.7)."""

from __future__ import annotations

import ast
import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok
from tests.gateway.test_leaving import LeftShop, shop
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.edge.target.forwarder import Forwarder
from tollkeeper.edge.target.relay import AnswerOwner, Relay, RelayRequest
from tollkeeper.gateway.call.credit import FATES, CreditState, Ending, Fate
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.ledger.purchase_rows import SpendResult
from tollkeeper.storage.ledger.purchases import Purchases

CREDITS: Final = 60
CALLS: Final = 24
GATEWAY: Final = Path(__file__).resolve().parents[2] / "src/tollkeeper/gateway"
TAKEN, UNKNOWN = CreditState.TAKEN, CreditState.UNKNOWN


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a call: where it is in the table, with which status it is answered, or noted where it is not."""

    state: CreditState
    ending: Ending
    status: int
    is_answered: bool = True


EVENTS: Final = {
    "served": Event(TAKEN, Ending.SERVED, 200),
    "late": Event(TAKEN, Ending.SERVED, 200),
    "broken": Event(TAKEN, Ending.FAILED, 502),  # `RETURNED` where the gate restores
    "crowded": Event(TAKEN, Ending.RETURNED, 503),
    "faulty": Event(TAKEN, Ending.FAILED, 500),
    "cut": Event(TAKEN, Ending.BROKEN_OFF, 200),  # at gates that stream: else it is `broken`
    "left": Event(TAKEN, Ending.LEFT, 499, is_answered=False),
    "stopped": Event(TAKEN, Ending.STOPPED, 503),
    "unsaid": Event(UNKNOWN, Ending.FAILED, 503),
}


def books_of(event: Event) -> tuple[str, int]:
    """State and status of the call in the books, by the table."""
    fate = FATES[event.state][event.ending]
    if fate is Fate.CHARGED_THOUGH_GONE:
        return "DONE", 499
    return ("DONE" if fate is Fate.CHARGED else "RESTORED"), event.status


@dataclass(slots=True)
class World:
    """A program whose target, whose clients and whose database do what a call's query says."""

    there: LeftShop
    gate: dict[str, Any]
    headers: dict[str, dict[str, str]]  # what is shown, by whether the call is `unsaid`
    stopping: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    reached: dict[str, asyncio.Event] = field(default_factory=dict)

    async def answer(self, request: Received, writer: Writer) -> None:
        name, _, number = request.path.partition("?")[2].partition("-")
        self.reached.setdefault(number, asyncio.Event()).set()
        if name == "late":
            await asyncio.sleep(0.3)
        elif name == "broken":
            writer.close()
            return
        elif name == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.close()
            return
        elif name in {"left", "stopped"}:
            await request.reader.read()
            return
        await answer_ok(request, writer)

    async def call(self, name: str, number: int) -> None:
        """One call, until it is answered or its client has left; one that is to be stopped is left waiting."""
        reached = self.reached.setdefault(str(number), asyncio.Event())
        reader, writer = await self.there.connect()
        shown = self.headers["unsaid" if name == "unsaid" else "payment"]
        lines = "".join(f"{key}: {value}\r\n" for key, value in shown.items())
        target = f"/{self.gate['slug']}?{name}-{number}"
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode())
        if name in {"left", "stopped"}:
            await asyncio.wait_for(reached.wait(), 30)
        if name == "stopped":
            self.stopping.append((reader, writer))
        elif name == "left":
            self.there.reset(writer)
        else:
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 %d " % EVENTS[name].status) or name in {"broken", "cut"}, answer


def put_faults_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a query asks for: no room for a target, a fault of ours, a database that commits and does not say so."""
    relay, spend_token = Forwarder.relay, Purchases.spend_token

    def crowded(self: Forwarder, request: RelayRequest, owner: AnswerOwner, **limits: Any) -> Relay:
        line = request.head.partition(b"\r\n")[0]
        if b"?crowded" in line:
            raise ApiError(Code.UNAVAILABLE, "there is no room")
        if b"?faulty" in line:
            raise ZeroDivisionError
        return relay(self, request, owner, **limits)

    async def unsaid(self: Purchases, *arguments: Any) -> SpendResult:
        await spend_token(self, *arguments)
        raise StorageError("the database said nothing")

    monkeypatch.setattr(Forwarder, "relay", crowded)
    monkeypatch.setattr(Purchases, "spend_token", unsaid)


@asynccontextmanager
async def world(
    folder: Path, chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch, **fields: Any
) -> AsyncIterator[World]:
    async with shop(chain.url, target, folder, drain_seconds=1) as there:
        gate = await there.gate(credits=CREDITS, **fields)
        payment, other = [await there.payment(gate) for _ in range(2)]
        for one in (payment, other):
            bought = await there.buyer.call(gate["accessUrl"], one)
            assert bought.status == 200
        token = {"X-Credit-Token": bought.headers["x-credit-token"]}
        here = World(there, gate, {"payment": {"X-Payment": payment}, "unsaid": token})
        target.answer = here.answer
        put_faults_in(monkeypatch)
        yield here


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_to_calls_each_credit_is_where_the_table_says(
    seed: int,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(seed)
    restores, streams = seed % 2 == 1, seed >= 2
    events = dict(EVENTS)
    if restores:
        events["broken"] = Event(TAKEN, Ending.RETURNED, 502)
    if streams:  # the forwarder's other way, in which no fault is put
        del events["crowded"], events["faulty"]
    else:
        events["cut"] = events["broken"]
    fields = {"onFailure": "restore" if restores else "consume", "stream": streams}
    names = [random.choice(sorted(events)) for _ in range(CALLS)]
    async with world(tmp_path, embedded_chain, target, monkeypatch, **fields) as here:
        await asyncio.gather(*(here.call(name, number) for number, name in enumerate(names)))
    for reader, writer in here.stopping:
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 503 ")
        writer.close()
    expected = Counter(books_of(events[name]) for name in names)
    expected["DONE", 200] += 2  # that bought
    assert here.there.calls() == expected, names
    charged = sum(count for (state, _), count in expected.items() if state == "DONE")
    with beside(here.there.database) as books:
        (left,) = books.execute("SELECT sum(remaining) FROM holdings").fetchone()
    assert left == 2 * CREDITS - charged


def test_every_state_and_every_ending_has_a_fate() -> None:
    assert {state: set(fates) for state, fates in FATES.items()} == {state: set(Ending) for state in CreditState}


TAKES: Final = {"spend", "spend_token", "spend_of_payer", "restore"}


def test_nothing_in_the_gateway_but_two_helpers_waits_for_what_takes_or_gives_back_a_credit() -> None:
    """Each verb of the ledger is called in `call.credit` alone, and awaited by its `_take` and `_give_back` alone."""
    calls: list[tuple[str, str]] = []
    for path in GATEWAY.rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls += [
            (path.relative_to(GATEWAY).as_posix(), node.func.attr)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKES
        ]
    outside = [(path, verb) for path, verb in calls if path != "call/credit.py"]
    assert outside == [("purchase/payer_proofs.py", "spend")]  # which `Credit._prove` asks for
    assert {verb for _, verb in calls} == TAKES
    credit = ast.parse((GATEWAY / "call/credit.py").read_text())
    awaited = [ast.unparse(node.value) for node in ast.walk(credit) if isinstance(node, ast.Await)]
    kept = [one for one in awaited if "in_kept_task" in one or one == "asked" or "reply" in one]
    assert [one for one in kept if not one.startswith(("self._take(", "asked"))] == []
    assert awaited.count("asked") == 2
