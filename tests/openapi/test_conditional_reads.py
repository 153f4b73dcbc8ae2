"""Whoever has what it asks for is told so: every GET has an `ETag` and answers `If-None-Match` (contract 2).

The table is the program's own description: an operation that is added has one, or stands below with a reason.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from solders.transaction import VersionedTransaction

from tests.interop.local_server import Reply, serving
from tests.openapi.conftest import Described
from tollkeeper.client.payments import latest_blockhash, solana_payment_for, solana_terms
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets

# Operation of the description, and why it has none.
WITHOUT = {
    "loginMessage": "another message each time",
    "healthz": "whether the process lives now",
    "readyz": "what is reachable now",
    "callByGet": "the target's own",
    "events": "what happens next",
}

UNTOLD = {"transfer-encoding"}  # where there is no body


@dataclass(frozen=True)
class Reading:
    """What was bought, and who may read it: path parameters, the query by operation, headers by part."""

    described: Described
    buyer: Buyer
    places: dict[str, str]
    queries: dict[str, str]
    headers: dict[str, dict[str, str]]

    async def read(self, operation: str, method: str = "GET", **more: str) -> Answer:
        part, _, path = operation.split(" ")
        described = self.described.operations[operation]
        name = described["operationId"]
        url = self.described.url(part) + path.format_map(self.places) + self.queries.get(name, "")
        return await self.buyer.ask(method, url, headers={**self.headers[part], **more})


@contextmanager
def a_target() -> Iterator[str]:
    with serving(lambda request: Reply(200, {"path": request.path})) as target:
        yield f"{target.url}/data"


async def reading(described: Described, buyer: Buyer, target_url: str) -> Reading:
    """Something is bought of every kind: a call, a file, a call on Solana."""
    gateway, hub = described.stack.gateway_url, described.stack.hub_url
    bearer = {"Authorization": f"Bearer {await buyer.login(gateway)}"}

    async def create(**more: Any) -> dict[str, Any]:
        answer = await buyer.ask("POST", f"{gateway}/api/v1/paygates", headers=bearer, **more)
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json()
        return made

    async def buy(gate: dict[str, Any], payment: str | None = None) -> Answer:
        payment = payment or buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
        answer = await buyer.call(gate["accessUrl"], payment)
        assert answer.status == 200, answer.body
        return answer

    gate = await create(body={"targetUrl": target_url, "price": "0.01", "credits": 3})
    bought = await buy(gate)
    form = aiohttp.FormData({"price": "0.01", "resourceType": "file"}, default_to_multipart=True)
    form.add_field("file", b"sold", filename="sold.bin")
    link = urlsplit((await buy(await create(form=form))).json()["downloadUrl"])
    pay_to = {"network": "solana-devnet", "paymentAddress": described.stack.solana.pay_to}
    abroad = await create(body={"targetUrl": target_url, "price": "0.01", **pay_to})
    asked = (await buyer.ask("GET", abroad["accessUrl"])).json()["accepts"][0]
    async with aiohttp.ClientSession() as session:
        blockhash = await latest_blockhash(session, described.stack.solana.rpc_url)
    seed = derive_solana_wallets().buyer.seed
    payment = solana_payment_for(asked, solana_terms(asked), seed, blockhash, os.urandom(8))
    await buy(abroad, payment)
    signed = VersionedTransaction.from_bytes(
        base64.b64decode(json.loads(base64.b64decode(payment))["payload"]["transaction"])
    )
    receipt = bought.receipt
    assert receipt is not None
    at_hub = {"Authorization": f"Bearer {await buyer.login(hub)}"}
    history = (await buyer.ask("GET", f"{hub}/api/v1/history?limit=100", headers=at_hub)).json()["history"]
    (item,) = [one for one in history if one["transactionHash"] == receipt["transaction"]]
    places = {
        "gate_id": str(gate["id"]),
        "settlement_id": item["id"],
        "file_id": link.path.rpartition("/")[2],
        "slug": gate["slug"],
        "name": str(signed.signatures[1]),  # the payer's; the first is the fee payer's
        "payer": receipt["payer"],
        "nonce": item["x402Data"]["nonce"],
    }
    return Reading(
        described,
        buyer,
        places,
        {
            "loginMessage": f"?walletAddress={receipt['payer']}",
            "history": "?limit=100",
            "downloadByGet": f"?{link.query}",
            "credits": "?limit=100",
        },
        {"gateway": bearer, "hub": at_hub},
    )


@pytest.mark.timeout(120)
async def test_every_get_is_answered_to_head_with_the_same_headers_and_no_body(described: Described) -> None:
    wrong: dict[str, object] = {}
    with a_target() as target_url:
        async with Buyer(derive_wallets().buyer) as buyer:
            reads = await reading(described, buyer, target_url)
            for operation in readings(described):
                name = described.operations[operation]["operationId"]
                reads.places["network"] = "solana-devnet" if name == "namedPayment" else "base-sepolia"
                answers = [await reads.read(operation, method) for method in ("GET", "HEAD")]
                got, head = ({**one.headers} for one in answers)
                if [one.status for one in answers] not in ([200, 200], [402, 402]) or answers[1].body:
                    wrong[operation] = [(one.status, one.body[:100]) for one in answers]
                elif ({name.lower() for name in got} ^ {name.lower() for name in head}) - UNTOLD:
                    wrong[operation] = (got, head)
                elif got["content-type"] != head["content-type"]:
                    wrong[operation] = (got["content-type"], head["content-type"])
    assert wrong == {}


def readings(described: Described) -> list[str]:
    return [name for name in described.operations if name.split(" ")[1] == "GET"]


@pytest.mark.timeout(120)
async def test_every_get_has_an_etag_and_tells_whoever_has_it_so(described: Described) -> None:
    wrong: dict[str, str] = {}
    seen: set[str] = set()
    with a_target() as target_url:
        async with Buyer(derive_wallets().buyer) as buyer:
            reads = await reading(described, buyer, target_url)
            for operation in readings(described):
                name = described.operations[operation]["operationId"]
                if name in WITHOUT:
                    seen.add(name)
                    continue
                reads.places["network"] = "solana-devnet" if name == "namedPayment" else "base-sepolia"
                wrong[operation] = await how_it_reads(reads, operation)
    assert {operation: what for operation, what in wrong.items() if what} == {}
    assert seen == set(WITHOUT)
    assert len(wrong) >= 15


async def how_it_reads(reads: Reading, operation: str) -> str:
    """What is wrong with the answers; "" where nothing is."""
    while True:
        tag, wrong = await as_it_reads(reads, operation)
        if not wrong or (await reads.read(operation)).headers.get("etag", "") == tag:
            return wrong  # else something was counted meanwhile


async def as_it_reads(reads: Reading, operation: str) -> tuple[str, str]:
    """The tag that it had, and what is wrong with the answers as long as it has it."""
    former, tag = None, ""
    while former != tag or former is None:  # what is counted is counted a moment later
        former, first = tag, await reads.read(operation)
        tag = first.headers.get("etag", "")
        if first.status != 200 or not tag:
            return tag, f"{first.status}, {tag!r}: {first.body[:200]!r}"
        await asyncio.sleep(0.3)
    others = {tag: 304, f'"other", {tag}': 304, "*": 304, '"other"': 200, f'{tag[:-2]}x"': 200}
    for given, status in others.items():
        again = await reads.read(operation, **{"If-None-Match": given})
        if again.status != status or again.headers.get("etag") != tag or (status == 304 and again.body):
            return tag, f"{given}: {again.status}, {again.headers.get('etag')!r}, {again.body[:200]!r}"
        length = again.headers.get("content-length")
        if status == 304 and length not in {None, first.headers["content-length"]}:  # RFC 9110 8.6
            return tag, f"{given}: a length of {length}"
    return tag, ""
