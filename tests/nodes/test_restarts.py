"""Nodes that restart one after the other under load: no caller notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.engines import said_to
from tests.nodes.load import load
from tests.nodes.town import town, until

CALLS = 20_000
SEALING = "SELECT name FROM sealing_keys"
RETIRED = "SELECT id AS name FROM retired_keys"
REVOKED = "SELECT name FROM revoked_keys"

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


async def test_a_rolling_restart_fails_no_call(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with town(tmp_path, embedded_chain) as place:
        async with load(place) as under:
            for node in (*place.gateways, *place.hubs):
                await node.restart()
            await until(lambda: under.served + under.failed.total() >= CALLS, 600)
        assert under.failed == {}
        assert under.bought > 0
        assert max(place.target.calls.values()) == 1


async def test_a_new_key_and_a_revocation_fail_no_call(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with town(tmp_path, embedded_chain) as place:

        async def keys(*words: str) -> None:
            done = await asyncio.to_thread(
                finished, "keys", *words, "--config", place.site.config, environ=place.site.environ, is_forked=False
            )
            assert done.returncode == 0, done.stderr

        def names(rows: str) -> list[str]:
            return [row["name"] for row in said_to(place.server.url, rows)]

        async with load(place) as under:
            (former,) = names(SEALING)
            await keys("rotate")
            for node in place.gateways:
                await node.restart()
            await until(lambda: names(RETIRED) == [former])
            assert len(names(SEALING)) == 2
            await keys("retire", former)
            for node in place.gateways:
                await node.restart()
            await keys("revoke", former)
            served = under.served
            await until(lambda: under.served > served + 500)
        assert under.failed == {}
        assert names(REVOKED) == [former]
