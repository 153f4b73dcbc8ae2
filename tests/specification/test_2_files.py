"""Section 2.1 rules 1 and 5, 4.1 and 8: a PayGate may be a file."""

from __future__ import annotations

from io import BytesIO

import aiohttp

from tests.specification.client import Answer, Wallet
from tests.specification.rows import row
from tests.specification.world import PAYGATES, World, bearer_header

LARGE = bytes(11_000_000)


async def upload(world: World, content: bytes | None, bearer: str | None = None, **fields: str) -> Answer:
    """Asks for a file PayGate, as section 2.1 rule 5 says."""
    form = aiohttp.FormData(default_to_multipart=True)
    for name, text in {"price": "0.01", "resourceType": "file", **fields}.items():
        form.add_field(name, text)
    if content is not None:
        form.add_field("file", BytesIO(content), filename="report.bin", content_type="application/octet-stream")
    return await world.gateway("POST", PAYGATES, data=form, headers=bearer_header(bearer))


async def logged_in(world: World) -> str:
    """An access token of a fresh wallet."""
    token: str = (await world.login(Wallet(), world.gateway_url))["accessToken"]
    return token


@row("2.1-resourceType", "2.1-file", "2.1-rule-5", "4.1-create-file")
async def test_a_file_is_uploaded_by_its_owner_and_its_buyer_gets_a_presigned_url(world: World) -> None:
    anonymous = await upload(world, b"hello")
    assert anonymous.refusal == (401, "AUTH_REQUIRED", "authentication")
    bearer = await logged_in(world)
    created = await upload(world, b"hello", bearer)
    assert (created.status, created.body["resourceType"]) == (201, "file")
    gate = created.body
    assert "file" not in gate
    paid, bought = await world.buy(gate)
    assert bought.headers["content-type"].startswith("application/json")
    downloaded = await world.http.send("GET", bought.body["downloadUrl"])
    assert (downloaded.status, downloaded.content) == (200, b"hello")
    assert world.target.requests == []
    assert (await world.call(gate, paid)).status == 402


async def test_a_file_paygate_without_a_form_or_a_file_is_refused(world: World) -> None:
    bearer = await logged_in(world)
    assert (await world.create(resourceType="file")).refusal == (400, "INVALID_PARAMETER", "validation")
    assert (await upload(world, None, bearer)).refusal == (400, "MISSING_PARAMETER", "validation")
    refused = await upload(world, b"x", bearer, resourceType="url")
    assert refused.refusal == (400, "INVALID_PARAMETER", "validation")
    assert (await world.gate(resourceType="url"))["resourceType"] == "url"


@row("8-proxy-size-file")
async def test_a_file_has_no_response_size_limit(world: World) -> None:
    gate = (await upload(world, LARGE, await logged_in(world))).body
    _, bought = await world.buy(gate)
    assert bought.body["size"] == len(LARGE) > 10_485_760
    assert (await world.http.send("GET", bought.body["downloadUrl"])).content == LARGE
