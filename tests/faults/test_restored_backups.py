"""Databases of gateway and hub that are set back to an old backup while the chain has moved on (security F22)."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import PAYEE
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came
from tests.faults.load import hold, sell
from tests.faults.parts import Part, parts_of
from tests.gateway.recording_target import recording_target
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CREDITS: Final = 3
SINCE: Final = 3
FORGOTTEN: Final = "a_sale_is_known_to_its_hub"


@dataclass
class Town:
    """Gateway and hub apart, and a buyer; `known` was bought before the backup, `since` after it."""

    directory: Path
    chain: ChainUnderTest
    parts: dict[str, Part]
    buyer: Buyer
    gate_url: str
    known: str
    since: list[str] = field(default_factory=list)

    async def set_back(self, names: Sequence[str]) -> None:
        """Backs both up as they run, sells more, stops them, and restores the named ones, as the guide says."""
        for part in self.parts.values():
            await asyncio.to_thread(back_up, part, self.backup(part))
        assert (await self.buyer.call(self.gate_url, self.known)).status == 200
        self.since = [await hold(self.buyer, self.gate_url) for _ in range(SINCE)]
        for part in self.parts.values():
            await asyncio.to_thread(part.kill)
        for name in names:
            restore(self.parts[name], self.backup(self.parts[name]))
        for part in self.parts.values():
            await asyncio.to_thread(part.start)

    def backup(self, part: Part) -> Path:
        return self.directory / "backup" / part.name

    async def answers(self, payment: str, times: int) -> list[Answer]:
        return [await self.buyer.call(self.gate_url, payment) for _ in range(times)]

    async def statuses(self, payment: str, times: int) -> list[int]:
        return [answer.status for answer in await self.answers(payment, times)]

    async def differences(self, name: str) -> list[str]:
        """What `db check --chain` lists, sorted."""
        part = self.parts[name]
        command = ("db", "check", "--chain", "--for", name, "--config", part.site.config)
        checked = await asyncio.to_thread(finished, *command, environ=part.site.environ)
        return sorted(line for line in checked.stdout.splitlines() if ": " in line)

    async def told_of_forgotten_sales(self, count: int) -> list[str]:
        """What the gateway's command lists once the sales were looked at again, and it is so much."""
        async with asyncio.timeout(60):
            while True:
                with closing(sqlite3.connect(self.parts["gateway"].site.database, timeout=20)) as books, books:
                    books.execute("UPDATE purchases SET follow_ms = 1 WHERE follow_ms IS NOT NULL")
                await asyncio.sleep(3)
                if len(listed := await self.differences("gateway")) == count:
                    return listed

    async def assert_nothing_lost(self, *new: str) -> None:
        paid = [authorization_in(payment) for payment in (self.known, *self.since, *new)]
        sites = [part.configured for part in self.parts.values()]
        await assert_nothing_lost(self.directory, self.chain, paid=paid, sites=sites)


def back_up(part: Part, to: Path) -> None:
    to.parent.mkdir(exist_ok=True)
    to.unlink(missing_ok=True)
    of_database(part, "backup", to)


def of_database(part: Part, word: str, copy: Path) -> None:
    command = ("db", word, copy, "--for", part.name, "--config", part.site.config)
    done = finished(*command, environ=part.site.environ)
    assert done.returncode == 0, done.stderr


def restore(part: Part, backup: Path) -> None:
    of_database(part, "restore", backup)
    came(f"restored backup of a {part.name}")


@asynccontextmanager
async def town_of(directory: Path, chain: ChainUnderTest) -> AsyncIterator[Town]:
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with ExitStack() as stack:
            parts = await asyncio.to_thread(stack.enter_context, parts_of(directory, chain))
            url = await sell(buyer, parts["gateway"].url, target, CREDITS)
            yield Town(directory, chain, parts, buyer, url, await hold(buyer, url))


def named_in(difference: str, payments: Sequence[str]) -> list[str]:
    return [payment for payment in payments if authorization_in(payment).nonce in difference]


async def settle_at_hub(town: Town, payment: str) -> bool:
    """The payment, brought to the hub itself; whether that was a success."""
    challenge = (await town.buyer.ask("GET", town.gate_url)).json()
    body = {
        "x402Version": 1,
        "paymentPayload": json.loads(base64.b64decode(payment)),
        "paymentRequirements": challenge["accepts"][0],
        "confirm": True,
    }
    answer = await town.buyer.ask("POST", town.parts["hub"].url + "/settle", body=body)
    assert answer.status == 200, answer.body
    success: bool = answer.json()["success"]
    return success


@pytest.mark.timeout(300)
async def test_what_gateway_and_hub_forgot_is_served_when_its_payment_is_presented_again(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with town_of(tmp_path, embedded_chain) as town:
        await town.set_back(["gateway", "hub"])
        before_micro = embedded_chain.balance(PAYEE)
        assert len(await town.differences("hub")) == SINCE
        for payment in town.since:  # spent credits are forgotten, too
            assert await town.statuses(payment, CREDITS + 1) == [200] * CREDITS + [402]
        assert await town.statuses(town.known, CREDITS) == [200, 200, 402]
        assert embedded_chain.balance(PAYEE) == before_micro
        new = await hold(town.buyer, town.gate_url)
        await town.assert_nothing_lost(new)


@pytest.mark.timeout(300)
async def test_what_the_hub_alone_forgot_stays_sold_and_is_listed_and_its_signer_goes_on(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with town_of(tmp_path, embedded_chain) as town:
        await town.set_back(["hub"])
        listed = await town.differences("hub")
        assert {line.split(":")[0] for line in listed} == {"settled_but_not_in_the_books"}
        assert sorted(named for line in listed for named in named_in(line, town.since)) == sorted(town.since)
        assert [line.split(":")[0] for line in await town.told_of_forgotten_sales(SINCE)] == [FORGOTTEN] * SINCE
        for payment in town.since:
            assert await town.statuses(payment, CREDITS) == [200, 200, 402]
        new = await hold(town.buyer, town.gate_url)
        for payment in town.since:  # who asks the hub itself has it adopt them, once; nothing is paid again
            assert [await settle_at_hub(town, payment) for _ in range(2)] == [True, False]
        assert await town.told_of_forgotten_sales(0) == []
        await town.assert_nothing_lost(new)


@pytest.mark.timeout(300)
async def test_what_the_gateway_alone_forgot_is_refused_by_its_transaction_and_honoured_by_hand(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with town_of(tmp_path, embedded_chain) as town:
        await town.set_back(["gateway"])
        assert len(await town.differences("gateway")) == SINCE
        assert await town.differences("hub") == []
        gateway = town.parts["gateway"]
        for payment in town.since:
            refused = (await town.answers(payment, 5))[-1]
            assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
            transaction = refused.json()["error"]["details"]["transaction"]
            slug = town.gate_url.rpartition("/")[2]
            command = ("payments", "honour", transaction, "--gate", slug, "--for", "gateway")
            done = await asyncio.to_thread(
                finished, *command, "--config", gateway.site.config, environ=gateway.site.environ
            )
            assert done.returncode == 0, done.stderr
            token = {"X-Credit-Token": done.stdout.partition("credit token  ")[2].split()[0]}
            served = [await town.buyer.ask("GET", town.gate_url, headers=token) for _ in range(CREDITS + 1)]
            assert [answer.status for answer in served] == [200] * CREDITS + [402]
        assert await town.statuses(town.known, CREDITS) == [200, 200, 402]
        new = await hold(town.buyer, town.gate_url)
        await town.assert_nothing_lost(new)
