"""Section 2.1 rules 1 and 5, 4.1 and 8: a PayGate may be a file."""

from __future__ import annotations

from io import BytesIO

import aiohttp

from tests.specification.client import Answer
from tests.specification.program import PAYGATES, Program, bearer_header
from tests.specification.rows import row_on_both
from tests.specification.world import World

LARGE = bytes(11_000_000)


async def upload(program: Program, content: bytes | None, bearer: str | None = None, **fields: str) -> Answer:
    """Asks for a file PayGate, as section 2.1 rule 5 says."""
    form = aiohttp.FormData(default_to_multipart=True)
    for name, text in {"price": "0.01", "resourceType": "file", **program.sold_to, **fields}.items():
        form.add_field(name, text)
    if content is not None:
        form.add_field("file", BytesIO(content), filename="report.bin", content_type="application/octet-stream")
    return await program.gateway("POST", PAYGATES, data=form, headers=bearer_header(bearer))


async def logged_in(program: Program) -> str:
    """An access token of a fresh wallet."""
    token: str = (await program.login(program.new_wallet(), program.gateway_url))["accessToken"]
    return token


@row_on_both("2.1-resourceType", "2.1-file", "2.1-rule-5", "4.1-create-file")
async def test_a_file_is_uploaded_by_its_owner_and_its_buyer_gets_a_presigned_url(program: Program) -> None:
    anonymous = await upload(program, b"hello")
    assert anonymous.refusal == (401, "AUTH_REQUIRED", "authentication")
    bearer = await logged_in(program)
    created = await upload(program, b"hello", bearer)
    assert (created.status, created.body["resourceType"]) == (201, "file")
    gate = created.body
    assert "file" not in gate
    paid, bought = await program.buy(gate)
    assert bought.headers["content-type"].startswith("application/json")
    downloaded = await program.http.send("GET", bought.body["downloadUrl"])
    assert (downloaded.status, downloaded.content) == (200, b"hello")
    assert program.target.requests == []
    assert (await program.call(gate, paid)).status == 402


async def test_a_file_paygate_without_a_form_or_a_file_is_refused(world: World) -> None:
    bearer = await logged_in(world)
    assert (await world.create(resourceType="file")).refusal == (400, "INVALID_PARAMETER", "validation")
    assert (await upload(world, None, bearer)).refusal == (400, "MISSING_PARAMETER", "validation")
    refused = await upload(world, b"x", bearer, resourceType="url")
    assert refused.refusal == (400, "INVALID_PARAMETER", "validation")
    assert (await world.gate(resourceType="url"))["resourceType"] == "url"


@row_on_both("8-proxy-size-file")
async def test_a_file_has_no_response_size_limit(program: Program) -> None:
    gate = (await upload(program, LARGE, await logged_in(program))).body
    _, bought = await program.buy(gate)
    assert bought.body["size"] == len(LARGE) > 10_485_760
    assert (await program.http.send("GET", bought.body["downloadUrl"])).content == LARGE
