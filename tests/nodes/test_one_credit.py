"""One credit and 1,000 callers at four gateways: it is spent once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.nodes.town import town

CALLERS = 1_000
TIMES = 20


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_of_a_thousand_callers_with_one_credit_one_is_served(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with town(tmp_path, embedded_chain) as place, aiohttp.ClientSession() as http:
        gate = await place.gate(credits=2)

        async def call(number: int, payment: str) -> int:
            url = f"{place.gateways[number % 4].url}/{gate['slug']}"
            async with http.get(url, headers={"X-Payment": payment}) as answer:
                await answer.read()
                return answer.status

        for _ in range(TIMES):
            payment = await place.bought(gate)
            before = len(place.target.calls)
            told = Counter(await asyncio.gather(*(call(number, payment) for number in range(CALLERS))))
            assert told[200] == 1, told
            assert set(told) <= {200, 402, 503}
            assert len(place.target.calls) == before + 1
        assert set(place.target.calls.values()) == {1}
