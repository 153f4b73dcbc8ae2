"""Random stories against real processes: on both families, before a hub of ours and a stranger's.

Each has a seed of its own, so that one that fails can be played again: the acts are drawn in the same order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.stories import evm_story, solana_story
from tests.faults.wide_stories import wide_story


async def test_a_random_story_of_buyers_owners_and_faults_loses_and_doubles_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with evm_story(tmp_path, embedded_chain, 3) as story:
        await story.play(12)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(100, 115))
async def test_many_random_stories_lose_and_double_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, seed: int
) -> None:
    async with evm_story(tmp_path, embedded_chain, seed) as story:
        await story.play(40)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(200, 205))
async def test_many_random_stories_on_solana_lose_and_double_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, seed: int
) -> None:
    async with solana_story(tmp_path, embedded_chain, seed) as story:
        await story.play(40)


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("seed", range(300, 324))
async def test_many_wide_stories_lose_and_double_nothing(
    tmp_path: Path, anvil_test_token: ChainUnderTest, seed: int
) -> None:
    async with wide_story(tmp_path, anvil_test_token, seed) as story:
        await story.play(40)
