"""Random tries of sales' payments (`tries`), each story with a seed of its own, so that it can be played again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.tries import tries_of
from tests.gateway.recording_target import RecordingTarget, recording_target


@pytest.fixture
async def target() -> AsyncIterator[RecordingTarget]:
    async with recording_target() as running:
        yield running


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_becomes_of_its_tries_a_sale_is_sold_for_the_payment_that_was_made(
    tmp_path: Path,
    anvil_test_token: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    async with tries_of(tmp_path, anvil_test_token, target, seed, monkeypatch) as tries:
        await tries.play(6, 6)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_whatever_becomes_of_many_tries_sales_are_sold_for_the_payments_that_were_made(
    tmp_path: Path,
    anvil_test_token: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    async with tries_of(tmp_path, anvil_test_token, target, seed, monkeypatch) as tries:
        await tries.play(12, 14)
