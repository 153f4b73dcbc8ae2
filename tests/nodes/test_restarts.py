"""Nodes that restart one after the other under load: no caller notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.nodes.load import load
from tests.nodes.town import town, until

CALLS = 20_000


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_rolling_restart_fails_no_call(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with town(tmp_path, embedded_chain) as place:
        async with load(place) as under:
            for node in (*place.gateways, *place.hubs):
                await node.restart()
            await until(lambda: under.served + under.failed.total() >= CALLS, 600)
        assert under.failed == {}
        assert under.bought > 0
        assert max(place.target.calls.values()) == 1
