from __future__ import annotations

import asyncio

from tollkeeper.edge.shared.turns import TurnEnd


async def test_what_breaks_at_a_turn_s_end_keeps_no_other_from_its_turn() -> None:
    turn_end, done = TurnEnd(), list[int]()

    def work(number: int) -> None:
        if number == 2:
            raise RuntimeError("a fault of ours")
        done.append(number)
        if number == 1:
            turn_end.add(work, 4)

    for number in (1, 2, 3):
        turn_end.add(work, number)
    assert done == []
    await asyncio.sleep(0)
    assert done == [1, 3]
    await asyncio.sleep(0)
    assert done == [1, 3, 4]
