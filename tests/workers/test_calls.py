"""Several workers answer on one port, and sell and serve each payment once (contract 4.3)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.chains.chain_under_test import ChainUnderTest
from tests.workers.program import PAYEE, lines_to_all, scene


async def test_all_workers_answer_on_one_port(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain, workers=3) as shop:
        async with lines_to_all(shop.program.url + "/readyz", 3) as lines:
            answers = await asyncio.gather(*(line.get(shop.program.url + "/readyz") for line in lines))
        assert {answer.status for answer in answers} == {200}
        hub = await shop.buyer.ask("GET", shop.program.url + "/hub/supported")
        assert [kind["network"] for kind in hub.json()["kinds"]] == ["base-sepolia"]
        known = {"If-None-Match": hub.headers["etag"]}
        same = await shop.buyer.ask("GET", shop.program.url + "/hub/supported", headers=known)
        assert (same.status, same.body, same.headers.get("content-length")) == (304, b"", None)
        token = await shop.buyer.login(shop.program.url)
        me = await asyncio.gather(
            *(
                shop.buyer.ask("GET", url + "/api/v1/auth/me", headers={"Authorization": f"Bearer {token}"})
                for url in [shop.program.url, shop.program.url + "/hub"] * 4
            )
        )
        assert {answer.status for answer in me} == {200}


async def test_a_payment_raced_over_workers_is_sold_once(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    before_micro = embedded_chain.balance(PAYEE)
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=5)
        payment = shop.buyer.sign((await shop.buyer.ask("GET", gate["url"])).json())
        async with lines_to_all(gate["url"], 2, count=12) as lines:
            answers = await asyncio.gather(*(line.get(gate["url"], X_Payment=payment) for line in lines))
        served = [answer for answer in answers if answer.status == 200]
        assert len(served) == 5, [answer.status for answer in answers]
        assert {answer.error_code for answer in answers if answer.status != 200} == {"CREDITS_EXHAUSTED"}
        assert len({answer.headers["x-purchase-id"] for answer in served}) == 1
        assert sorted(int(answer.headers["x-credits-remaining"]) for answer in served) == [0, 1, 2, 3, 4]
        assert len(shop.target.requests) == 5
    assert embedded_chain.balance(PAYEE) - before_micro == 10_000


async def test_credits_are_exact_over_workers(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate(credits=100)
        payment, first = await shop.buy(gate)
        assert first.status == 200
        async with lines_to_all(gate["url"], 2, count=16) as lines:
            answers = await asyncio.gather(
                *(line.get(gate["url"], X_Payment=payment) for line in lines for _ in range(10))
            )
        assert sum(answer.status == 200 for answer in answers) == 99
        assert {answer.status for answer in answers} == {200, 402}
        assert len(shop.target.requests) == 100
        ((remaining, entries),) = shop.site.rows(
            "SELECT p.remaining, (SELECT sum(delta) FROM credit_entries e WHERE e.purchase_id = p.id) FROM holdings p"
        )
        assert remaining == entries == 0


async def test_counts_are_exact_over_workers(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain, workers=3) as shop:
        gate = await shop.gate(credits=100)
        payment, _ = await shop.buy(gate)
        path = f"{shop.program.url}/api/v1/paygates/{gate['id']}"
        async with lines_to_all(gate["url"], 3, count=12) as lines:
            paid = [line.get(gate["url"], X_Payment=payment) for line in lines for _ in range(10)]
            wrong = [line.get(gate["url"], X_Payment="unreadable") for line in lines for _ in range(3)]
            unpaid = [line.get(gate["url"]) for line in lines * 5]
            await asyncio.gather(*paid, *wrong, *unpaid)
        # Besides these: the 402 that was paid, the first call of each line, and what came when the credits were gone.
        challenged = len(unpaid) + 1 + len(lines) + len(paid) - 99
        wanted = {"challenged": challenged, "refused": len(wrong), "served": 100}

        def counted() -> dict[str, int]:
            return dict(shop.site.rows("SELECT outcome, sum(requests) FROM traffic_hours GROUP BY outcome"))

        def logged() -> int:
            return int(shop.site.rows("SELECT count(*) FROM requests")[0][0])

        await shop.until(lambda: min(sum(counted().values()), logged()) >= sum(wanted.values()))
        assert counted() == wanted
        told = (await shop.buyer.ask("GET", path + "/stats?bucket=hour")).json()
        assert told["calls"] == {"total": 100, "served": 100, "targetError": 0, "failed": 0, "clientGone": 0}
        assert (told["challenges"], told["refusals"], told["purchases"]) == (challenged, len(wrong), 1)
        assert told["outstanding"] == {"credits": 0, "liability": "0"}
        log = (await shop.buyer.ask("GET", path + "/requests?limit=1")).json()
        assert log["pagination"]["totalCount"] == sum(wanted.values())
        counters = (await shop.buyer.ask("GET", path)).json()["counters"]
        assert (counters["calls"], counters["challenges"]) == (100, challenged)


async def test_lines_of_the_log_are_whole(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as shop:
        gate = await shop.gate()
        async with lines_to_all(gate["url"], 2, count=32) as lines:
            await asyncio.gather(*(line.get(gate["url"] + "?" + "x" * 300) for line in lines for _ in range(30)))

        def is_written() -> bool:
            text = shop.program.process.wrote.rpartition("\n")[0]
            written = [json.loads(line) for line in text.splitlines()]  # each line is whole
            answered = [line for line in written if line["event"] == "request" and line["status"] == 402]
            return len(answered) >= 32 * 30

        await shop.until(is_written)
