"""What a gateway asks its database for by other proofs and besides sales: logins, uploads, statistics; each faulty."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Any, Final

import aiohttp
from yarl import URL

from tests.faults.gateway_site import PATIENCE_SECONDS, SOLD, GatewaySite, until_told
from tests.faults.striking import Case
from tests.hub.faulty_database import Kind
from tollkeeper.core.keys.wallet_keys import WalletKey
from tollkeeper.core.paygates.statistics import RequestOutcome
from tollkeeper.storage.files.store import LocalFiles

_SIZE_BYTES: Final = 200_000
# Counts are written twice a second.
_WRITTEN_SECONDS: Final = 1.5


async def spend_by_token(site: GatewaySite, case: Case) -> None:
    """The credit token of a purchase spends it."""
    signed = await site.sign(creditBinding="token")
    token = (await site.until(signed)).headers["x-credit-token"]
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await until_told(partial(site.ask, "GET", signed.gate["accessUrl"], headers={"X-Credit-Token": token}), 200)
    await site.bought_once(signed, case, deaths, calls=2)


async def spend_of_wallet(site: GatewaySite, case: Case) -> None:
    """The payer's bearer spends it."""
    signed = await site.sign(creditBinding="wallet")
    bearer = {"Authorization": f"Bearer {await site.buyer.login(site.url)}"}
    ask = partial(site.ask, "GET", signed.gate["accessUrl"])
    await until_told(partial(ask, headers={"X-Payment": signed.header, **bearer}), 200)
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await until_told(partial(ask, headers=bearer), 200)
    await site.bought_once(signed, case, deaths, calls=2)


async def log_in(site: GatewaySite, case: Case) -> None:
    """A wallet logs in, has its tokens renewed and logs out: a message is one login at most, an end is one for good."""
    key, deaths = site.wallet().key, site.gateway.deaths
    site.gateway.prepare(case)
    tokens, messages = await _logged_in(site, key)
    renewed = await _ask(site, "POST", "refresh", 200, 401, body={"refreshToken": tokens["refreshToken"]})
    if renewed.status == 401:  # it was used, its answer lost, and the death that lost it took longer than 10 s
        tokens, more = await _logged_in(site, key)
        messages += more
    else:
        tokens = renewed.json()
    bearer = {"Authorization": f"Bearer {tokens['accessToken']}"}
    me = await _ask(site, "GET", "me", 200, headers=bearer)
    await _ask(site, "POST", "logout", 200, 401, headers=bearer)
    await _ask(site, "GET", "me", 401, headers=bearer)
    await site.come(case, deaths)
    begun = site.rows("SELECT COUNT(*) FROM sessions WHERE user_id = ?", me.json()["id"])[0][0]
    assert 1 <= begun <= messages
    assert site.rows("SELECT COUNT(*) FROM users WHERE lower(wallet) = lower(?)", key.address) == [(1,)]


async def _logged_in(site: GatewaySite, key: WalletKey) -> tuple[dict[str, Any], int]:
    """Its tokens, and how many messages it signed: one that was used, and whose answer got lost, is no other login."""
    messages = 0
    while True:
        asked = await _ask(site, "GET", f"message?walletAddress={key.address}", 200)
        message = asked.json()["message"]
        messages += 1
        proof = {"message": message, "signature": key.sign_text(message)}
        answer = await _ask(site, "POST", "login", 200, 401, body=proof)
        if answer.status == 200:
            return answer.json(), messages


async def _ask(site: GatewaySite, method: str, path: str, *statuses: int, **given: Any) -> Any:
    return await until_told(partial(site.ask, method, f"{site.url}/api/v1/auth/{path}", **given), *statuses)


async def upload(site: GatewaySite, case: Case) -> None:
    """A file is put up for sale under a key of its owner's: sold whole, once, and nothing of another try is kept."""
    content, number = os.urandom(_SIZE_BYTES), len(site.paid)
    await site.gateway.url()
    headers = {"Authorization": f"Bearer {await site.buyer.login(site.url)}"}
    headers["Idempotency-Key"] = f"upload-{number}-of-a-file"
    before, deaths = _sold(site), site.gateway.deaths

    async def send() -> Any:
        form = aiohttp.FormData()
        for name, value in {**SOLD, "resourceType": "file"}.items():
            form.add_field(name, str(value))
        form.add_field("file", content, filename="sold.bin")
        return await site.ask("POST", site.paygates, form=form, headers=headers)

    site.gateway.prepare(case)
    gate = (await until_told(send, 201)).json()
    signed = await site.sign_for(gate)
    link = URL((await site.until(signed)).json()["downloadUrl"], encoded=True)
    assert (await until_told(partial(site.ask, "GET", str(link)), 200)).body == content
    await site.bought_once(signed, case, deaths)
    assert len(_sold(site) - before) == 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        while site.rows("SELECT 1 FROM uploads WHERE is_cut = 0"):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
    kept = {found.file_id async for found in LocalFiles(site.directory / "files", 0).listed()}
    assert kept <= _sold(site) | {name for (name,) in site.rows("SELECT file_id FROM uploads")}


def _sold(site: GatewaySite) -> set[str]:
    return {name for (name,) in site.rows("SELECT id FROM files")}


async def count(site: GatewaySite, case: Case) -> None:
    """What is counted of a call is counted once; of a process that died perhaps not at all."""
    signed, deaths = await site.sign(), site.gateway.deaths
    site.gateway.prepare(case)
    await site.until(signed)
    await site.bought_once(signed, case, deaths)
    await site.gateway.url()
    expected = {0, 1, 2} if case.kind is Kind.CRASH else {1}
    gate_id, served = signed.gate["id"], RequestOutcome.SERVED.value
    hours = "SELECT COALESCE(SUM(requests), 0) FROM traffic_hours WHERE gate_id = ? AND outcome = ?"
    log = "SELECT COUNT(*) FROM requests WHERE gate_id = ? AND outcome = ?"
    counters = "SELECT calls FROM paygate_counters WHERE gate_id = ?"

    def counted() -> set[int]:
        return {site.rows(sql, gate_id, served)[0][0] for sql in (hours, log)} | {site.rows(counters, gate_id)[0][0]}

    if case.kind is not Kind.CRASH:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while 0 in counted():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.1)
    await asyncio.sleep(_WRITTEN_SECONDS)
    found = counted()
    assert len(found) == 1, found
    assert found <= expected
