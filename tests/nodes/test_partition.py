"""A gateway whose link is down: it writes nothing, the others go on, and it comes back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import said_to
from tests.nodes.town import town, until

DOWN_SECONDS = 12.0


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_gateway_that_is_cut_off_writes_nothing_and_comes_back(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with town(tmp_path, embedded_chain, gateways=2, hubs=1) as place:
        here, away = place.gateways
        gate = await place.gate(credits=1_000)
        payment = await place.bought(gate)
        assert (await place.told(away, gate, payment)).status == 200
        marks = {str(row["mark"]) for row in said_to(place.server.url, "SELECT mark FROM nodes")}
        away.host.cut_off()
        began = time.monotonic()
        while time.monotonic() < began + DOWN_SECONDS:
            assert (await place.told(here, gate, payment)).status == 200
            await asyncio.sleep(0.2)
        before = said_to(place.server.url, "SELECT sum(remaining) AS left FROM credits")
        left = {str(row["mark"]) for row in said_to(place.server.url, "SELECT mark FROM nodes")}
        assert len(left & marks) == 1  # the other one was ended
        changed = await place.buyer.ask("PUT", f"{here.url}/api/v1/paygates/{gate['id']}", body={"price": "0.02"})
        assert changed.status == 200, changed.body
        away.host.join()
        await until(lambda: "begins anew" in away.wrote)
        await away.ready()
        assert said_to(place.server.url, "SELECT sum(remaining) AS left FROM credits") == before
        shown = (await place.buyer.ask("GET", f"{away.url}/{gate['slug']}")).json()
        assert shown["accepts"][0]["maxAmountRequired"] == "20000"
        async with asyncio.timeout(60):
            while (answer := await place.told(away, gate, payment)).status == 503:
                assert "nothing was charged" in answer.json()["error"]["message"]
        assert answer.status == 200, answer.body
        again = {str(row["mark"]) for row in said_to(place.server.url, "SELECT mark FROM nodes")}
        assert len(again - marks) == 1
        assert len(again) == 2
