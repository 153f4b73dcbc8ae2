"""A burst of requests of the API leaves turns of the loop to the calls in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tollkeeper.serving.http.paced_starts import STARTS_IN_A_TURN, PacedStarts

if TYPE_CHECKING:
    from tollkeeper.serving.http.asgi import Message, Receive, Send

BURST = 10 * STARTS_IN_A_TURN


async def _receive() -> Message:
    raise AssertionError


async def _send(message: Message) -> None:
    raise AssertionError(message)


async def test_a_burst_begins_a_few_in_a_turn_in_order_and_who_left_takes_no_start() -> None:
    turn, begun = 0, list[tuple[int, int]]()

    async def app(scope: Message, _receive: Receive, _send: Send) -> None:
        begun.append((turn, scope["number"]))

    paced = PacedStarts(app)
    requests = [
        asyncio.create_task(paced({"type": "http", "number": number}, _receive, _send)) for number in range(BURST)
    ]
    await asyncio.sleep(0)
    left = set(range(STARTS_IN_A_TURN, BURST, 3))
    for number in left:
        requests[number].cancel()
    while not all(request.done() for request in requests):
        turn += 1
        await asyncio.sleep(0)
    assert [number for _, number in begun] == [number for number in range(BURST) if number not in left]
    in_turns = [sum(1 for one, _ in begun if one == number) for number in range(turn + 1)]
    assert max(in_turns) <= STARTS_IN_A_TURN
    assert len([count for count in in_turns if count]) <= turn
    later = PacedStarts(app)
    await asyncio.gather(*(later({"type": "http", "number": 0}, _receive, _send) for _ in range(BURST)))
    await asyncio.wait_for(later({"type": "http", "number": 0}, _receive, _send), 30)
