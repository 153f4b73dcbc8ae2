"""When the next block is looked for, on chains that are steady, unsteady, idle and begun anew."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.chains.watcher import BlockBeat

ROUND_TRIP = 0.003
WIDEST_PAUSE = 0.5


def followed(arrivals: list[float], beat: BlockBeat, first: int = 1) -> list[float]:
    """How late each block was found by who looks for a transaction in it, from when the one before was found."""
    lags: list[float] = []
    now = arrivals[0] - 1
    for number, arrival in enumerate(arrivals, first):
        pause, own, absent_at = 0.002, now, None
        while True:
            due = beat.next_look(now)
            now = max(now, min(own, own if due is None else due))
            if now >= arrival:
                break
            absent_at = now
            now += ROUND_TRIP
            if now >= own:
                own, pause = now + pause, min(2 * pause, WIDEST_PAUSE)
        if absent_at is not None:
            beat.found(number, absent_at, now)
        lags.append(now - arrival)
        now += ROUND_TRIP
    return lags


def test_steady_blocks_are_found_as_they_come() -> None:
    for period in (1.0, 2.0, 12.0):
        lags = followed([100 + number * period for number in range(60)], BlockBeat())
        assert sorted(lags[20:])[20] < 0.02
        assert max(lags[20:]) < 0.1


def test_a_beat_that_moves_is_followed() -> None:
    moving = [100 + number * 2.0 + (0.7 if number > 30 else 0) for number in range(90)]
    assert max(followed(moving, BlockBeat())[60:]) < 0.1
    slower = [100 + number * 2.0 for number in range(30)] + [160 + number * 3.0 for number in range(60)]
    assert max(followed(slower, BlockBeat())[60:]) < 0.1


@given(st.lists(st.floats(0.1, 30), min_size=2, max_size=40))
def test_nothing_is_found_later_than_without_it(pauses: list[float]) -> None:
    arrivals = [100.0]
    for pause in pauses:
        arrivals.append(arrivals[-1] + pause)
    assert max(followed(arrivals, BlockBeat())) <= WIDEST_PAUSE + 2 * ROUND_TRIP


def test_the_next_block_is_looked_for_where_it_may_come() -> None:
    beat = BlockBeat()
    assert beat.next_look(100) is None
    beat.found(7, 99.9, 100)
    assert beat.next_look(100) is None, "one block has no beat"
    beat.found(9, 103.9, 104)
    looks = [104.0]
    while looks[-1] < 110:
        looks.append(beat.next_look(looks[-1]) or 0)
    assert [round(look, 2) for look in looks[1:6]] == [105.95, 106.0, 106.1, 106.3, 107.95]
    assert all(later - earlier > 0.001 for earlier, later in pairwise(looks))


def test_of_one_block_the_narrowest_is_kept() -> None:
    beat = BlockBeat()
    beat.found(1, 9.9, 10)
    beat.found(2, 11.8, 12)
    beat.found(2, 11.9, 12.1)
    beat.found(2, 11.0, 11.96)
    assert round(beat.next_look(13) or 0, 2) == 13.93
    beat.found(2, 12.5, 11.5)
    assert beat.next_look(13) is not None, "what contradicts it changes nothing"


def test_what_was_found_behind_a_silence_tells_nothing() -> None:
    beat = BlockBeat()
    beat.found(1, 9.9, 10)
    beat.found(2, 11.9, 12)
    before = beat.next_look(13)
    beat.found(9, 14, 29)
    assert beat.next_look(13) == before


def test_an_idle_chain_and_one_that_is_begun_anew() -> None:
    beat = BlockBeat()
    for number in range(20):
        beat.found(number, 100 + 2 * number - 0.01, 100 + 2 * number)
    assert round(beat.next_look(1_001) or 0, 2) == 1001.99, "an hour later the beat is the same"
    beat.found(3, 1_002.5, 1_002.52)
    assert round(beat.next_look(1_002.52) or 0, 2) == 1004.51, "a lower number moves it, and changes nothing else"


def test_fast_chains_are_not_foretold() -> None:
    beat = BlockBeat()
    for number in range(20):
        beat.found(number, 100 + 0.4 * number - 0.01, 100 + 0.4 * number)
    assert beat.next_look(200) is None
