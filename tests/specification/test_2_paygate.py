"""Specification 2.1 and 2.6: the PayGate's fields and rules, and the user."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.specification.client import Wallet
from tests.specification.program import Program
from tests.specification.rows import row, row_on_both
from tests.specification.settling import paused_mining
from tests.specification.world import World

# The hub's settlements say publicly who paid whom; every other table is the gateway's (contract 3.1).
_HUB_TABLES = {
    *("settlements", "settlement_events", "settlement_slots", "raw_transactions", "idempotency"),
    *("signer_lanes", "gas_spent", "payer_failures", "leases", "hub_processes"),
}


async def assert_refused(program: Program, code: str, **fields: object) -> None:
    """Neither a create nor an update takes these fields, and the refusal names the one that is wrong."""
    (name,) = fields
    gate = await program.gate()
    for answer in (await program.create(**fields), await program.update(gate, **fields)):
        assert answer.refusal == (400, code, "validation"), (fields, answer.content)
        assert answer.error["details"]["field"] == name
    assert (await program.read(gate))[name] == gate[name]


async def assert_kept(program: Program, name: str, value: object, shown: object | None = None) -> dict[str, Any]:
    """A create and an update take the value, and reads show it. Returns the gate."""
    expected = value if shown is None else shown
    gate = await program.gate(**{name: value})
    assert gate[name] == expected
    other = await program.gate()
    assert (await program.update(other, **{name: value})).body[name] == expected
    assert (await program.read(other))[name] == expected
    return gate


@row_on_both("2.1-targetUrl")
async def test_paid_requests_are_proxied_to_the_target_url(program: Program) -> None:
    gate = await assert_kept(program, "targetUrl", program.target.url + "/a/path?of=its-own")
    await program.buy(gate)
    (request,) = program.target.requests
    assert (request.method, request.path) == ("GET", "/a/path?of=its-own")
    for wrong in ("no url", "ftp://example.org/", "/path", "http://", 5, True, ["http://example.org/"]):
        await assert_refused(program, "INVALID_PARAMETER", targetUrl=wrong)


@row("2.1-price")
async def test_price_is_a_decimal_string_of_usdc_and_the_price_of_one_purchase(world: World) -> None:
    gate = await assert_kept(world, "price", "0.012345")
    recipient = Wallet().address
    await world.update(gate, paymentAddress=recipient, credits=2)
    paid, _ = await world.buy(gate)
    assert (await world.call(gate, paid)).status == 200
    assert await world.balance(recipient) == 12_345
    for price in ("1", "0.1", "0.000001", "999999999999.999999"):
        assert (await world.asked(await world.gate(price=price)))["x402"]["amount"] == price
    for wrong in ("", "0", "-1", "1e3", "0.0000001", "0,5", "one", ".5", "5.", " 1", "1_000", "٣", True, [1]):
        if wrong == "":
            assert (await world.update(gate, price=wrong)).refusal == (400, "INVALID_AMOUNT", "validation")
        else:
            await assert_refused(world, "INVALID_AMOUNT", price=wrong)


@row("2.1-credits")
async def test_credits_are_the_calls_that_a_purchase_grants(world: World) -> None:
    gate = await assert_kept(world, "credits", 3)
    paid = await world.payment(gate)
    assert [(await world.call(gate, paid)).status for _ in range(4)] == [200, 200, 200, 402]
    assert len(world.target.requests) == 3
    for wrong in (0, -1, 1.5, "3", True, [3], 10**30):
        await assert_refused(world, "INVALID_PARAMETER", credits=wrong)


@row_on_both("2.1-method")
async def test_method_names_the_methods_that_are_accepted(program: Program) -> None:
    gate = await assert_kept(program, "method", "GET,POST,PUT,DELETE")
    await program.update(gate, credits=4)
    paid = await program.payment(gate)
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert (await program.call(gate, paid, method)).status == 200
    assert [request.method for request in program.target.requests] == ["GET", "POST", "PUT", "DELETE"]
    refused = await program.call(gate, await program.payment(gate), "PATCH")
    assert refused.refusal == (405, "METHOD_NOT_ALLOWED", "validation")
    assert {"GET", "POST", "PUT", "DELETE"} <= set(refused.headers["allow"].split(", "))
    single = await assert_kept(program, "method", "POST")
    assert (await program.call(single, method="GET")).status == 405
    assert (await program.call(single, method="POST")).status == 402
    for wrong in ("", "FETCH", "GET,", "GET POST", 5, ["GET"]):
        await assert_refused(program, "INVALID_PARAMETER", method=wrong)


@row_on_both("2.1-title")
async def test_title_is_a_string_that_is_displayed(program: Program) -> None:
    gate = await assert_kept(program, "title", "Wetter für Ålesund ☂")
    assert (await program.asked(gate))["resource"]["title"] == "Wetter für Ålesund ☂"
    for wrong in (5, True, ["title"], {"title": 1}):
        await assert_refused(program, "INVALID_PARAMETER", title=wrong)


@row_on_both("2.1-description")
async def test_description_is_a_string_that_is_displayed(program: Program) -> None:
    gate = await assert_kept(program, "description", "Which way the wind blows\nand how hard")
    asked = await program.asked(gate)
    assert asked["resource"]["description"] == asked["accepts"][0]["description"] == gate["description"]
    for wrong in (5, True, ["description"], {"description": 1}):
        await assert_refused(program, "INVALID_PARAMETER", description=wrong)


@row("2.1-assumeValid")
async def test_assume_valid_decides_whether_the_chain_is_waited_for(world: World) -> None:
    assert (await world.gate())["assumeValid"] is False
    confirmed, trusted = await world.gate(), await assert_kept(world, "assumeValid", value=True)
    async with paused_mining(world):
        _, answer = await world.buy(trusted)
        assert await world.rpc("eth_getTransactionReceipt", answer.confirmation["transaction"]) is None
        waiting = asyncio.create_task(world.buy(confirmed))
        done, _ = await asyncio.wait({waiting}, timeout=1)
        assert not done
        assert len(world.target.requests) == 1
    _, answer = await waiting
    receipt = await world.rpc("eth_getTransactionReceipt", answer.confirmation["transaction"])
    assert receipt["status"] == "0x1"
    for wrong in ("true", 1, 0, "yes"):
        await assert_refused(world, "INVALID_PARAMETER", assumeValid=wrong)


@row("2.1-requireAuth")
async def test_require_auth_asks_for_a_bearer_besides_the_payment(world: World) -> None:
    gate = await assert_kept(world, "requireAuth", value=True)
    bearer = {"Authorization": f"Bearer {(await world.login(world.buyer, world.gateway_url))['accessToken']}"}
    free = await world.gate()
    paid = await world.payment(free)
    await world.update(free, requireAuth=True)
    assert (await world.call(free, paid)).refusal == (401, "AUTH_REQUIRED", "authentication")
    assert (await world.call(gate, headers=bearer)).status == 402
    assert (await world.call(free, paid, headers=bearer)).status == 200
    for wrong in ("true", 1, 0, "no"):
        await assert_refused(world, "INVALID_PARAMETER", requireAuth=wrong)


@row("2.1-paymentAddress")
async def test_payment_address_is_paid_at_once_and_stored_encrypted(world: World) -> None:
    first, second = Wallet().address, Wallet().address
    gate = await assert_kept(world, "paymentAddress", first)
    late = await world.payment(gate)
    await world.buy(gate)
    assert (await world.update(gate, paymentAddress=second)).status == 200
    assert (await world.call(gate, late)).refusal == (402, "PAYMENT_INVALID", "payment")
    assert (await world.asked(gate))["x402"]["address"] == second
    await world.buy(gate)
    assert (await world.balance(first), await world.balance(second)) == (10_000, 10_000)
    stored = {name: rows for name, rows in world.dump().items() if name not in _HUB_TABLES}
    assert {"paygates", "paygate_versions", "purchases"} <= stored.keys()
    assert any(gate["slug"] in stored_row for stored_row in stored["paygates"])
    for address in (first, second):
        assert not appears(address, stored)
    unpaid = Wallet().address
    await world.gate(paymentAddress=unpaid)
    for path in filter(Path.is_file, world.database.parent.glob("sandbox.db*")):
        if path.is_socket():
            continue  # commands reach the running program by it
        content = path.read_bytes()
        assert bytes.fromhex(unpaid[2:]) not in content
        assert unpaid[2:].lower().encode() not in content.lower()
    for wrong in ("0x12", unpaid[2:], "0x" + "g" * 40, "vitalik.eth", 5, True, "0x" + "00" * 20, miscased(unpaid)):
        await assert_refused(world, "INVALID_ADDRESS", paymentAddress=wrong)


def appears(address: str, stored: dict[str, list[tuple[Any, ...]]]) -> bool:
    """Is the address anywhere in these tables, as text or as bytes?"""
    spellings = (address[2:].lower().encode(), bytes.fromhex(address[2:]))
    values = [value for rows in stored.values() for stored_row in rows for value in stored_row]
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    return any(spelling in text or spelling in text.lower() for text in texts for spelling in spellings)


def miscased(address: str) -> str:
    """The address with one letter in the wrong case: its EIP-55 checksum does not hold."""
    place = next(index for index in range(2, 42) if address[index].isalpha())
    return address[:place] + address[place].swapcase() + address[place + 1 :]


@row_on_both("2.1-rule-1")
async def test_a_gate_has_a_numeric_id_to_update_it_and_a_slug_to_call_it(program: Program) -> None:
    gate = await program.gate()
    assert type(gate["id"]) is int
    assert gate["accessUrl"] == f"{program.gateway_url}/{gate['slug']}"
    changed = await program.gateway("PUT", f"/api/v1/paygates/{gate['id']}", json={"title": "by its number"})
    assert (changed.status, changed.body["slug"]) == (200, gate["slug"])
    assert (await program.gateway("GET", f"/{gate['slug']}")).status == 402
    assert (await program.gateway("PUT", f"/api/v1/paygates/{gate['slug']}", json={"title": "x"})).status == 404
    assert (await program.gateway("GET", f"/{gate['id']}00000")).status == 404


@row("2.1-rule-2")
async def test_changed_credits_are_those_of_new_purchases_only(world: World) -> None:
    gate = await world.gate(credits=2)
    held, _ = await world.buy(gate)
    await world.update(gate, credits=5)
    assert [(await world.call(gate, held)).status for _ in range(2)] == [200, 402]
    new, answer = await world.buy(gate)
    assert answer.headers["x-credits-total"] == "5"
    assert [(await world.call(gate, new)).status for _ in range(5)] == [200, 200, 200, 200, 402]


@row_on_both("2.1-rule-3")
async def test_an_update_of_several_fields_is_applied_whole_or_not_at_all(program: Program) -> None:
    gate = await program.gate(title="before", credits=2)
    good = {"title": "after", "description": "after", "price": "0.02", "credits": 9, "requireAuth": True}
    for bad in ({"price": "x"}, {"method": "FETCH"}, {"assumeValid": 1}, {"paymentAddress": "x"}, {"nonsense": 1}):
        assert (await program.update(gate, **{**good, **bad})).status == 400
        assert {**await program.read(gate), "timestamp": gate["timestamp"]} == gate
    changed = (await program.update(gate, **good)).body
    assert {name: changed[name] for name in good} == good


@row_on_both("2.1-rule-4")
async def test_an_update_carries_any_subset(program: Program) -> None:
    fields: dict[str, object] = {
        "targetUrl": program.target.url + "/other",
        "price": "0.5",
        "credits": 7,
        "method": "GET,POST",
        "title": "T",
        "description": "D",
        "assumeValid": True,
        "requireAuth": True,
        "paymentAddress": (await program.payee()).address,
    }
    gate = await program.gate()
    subsets = [{name: fields[name]} for name in fields]
    subsets += [{"price": "2", "credits": 8}, {"title": "U", "method": "PUT", "requireAuth": False}, fields]
    expected = dict(gate)
    for subset in subsets:
        answer = await program.update(gate, **subset)
        assert answer.status == 200
        expected.update(subset)
        apart = {"updatedAt", "timestamp", "warnings"}  # clients of version 2 pay less than it costs by then
        same = {name: value for name, value in answer.body.items() if name not in apart}
        assert same == {name: expected[name] for name in same}


@row_on_both("2.1-headerAuthMode")
async def test_header_auth_mode_hmac_shows_a_secret_once_and_keeps_it_sealed(program: Program) -> None:
    gate = await assert_kept(program, "headerAuthMode", "hmac")
    await assert_kept(program, "headerAuthMode", "none")
    assert gate["secret"]
    assert gate["keyId"]
    read = await program.read(gate)
    assert {"secret", "keyId"}.isdisjoint(read)
    dump = program.dump()
    assert [row for row in dump["paygate_secrets"] if gate["keyId"] in row]
    assert gate["secret"] not in str(dump)
    for wrong in ("HMAC", "sha256", "", True, ["hmac"]):
        await assert_refused(program, "INVALID_PARAMETER", headerAuthMode=wrong)


@row_on_both("2.1-rule-6")
async def test_a_read_shows_what_was_decided_for_the_specification(program: Program) -> None:
    gate = await program.read(await program.gate())
    shown = {"targetUrl", "price", "credits", "method", "title", "description", "assumeValid", "requireAuth"}
    shown |= {"paymentAddress", "headerAuthMode", "resourceType", "slug", "network", "accepts", "mimeType"}
    shown |= {"allowSubpaths", "stream", "creditBinding", "payerProof", "onFailure", "isEnabled", "targetHeaders"}
    shown |= {"creditsExpireAfter", "id", "accessUrl", "ownerWallet", "createdAt", "updatedAt", "counters"}
    assert gate.keys() == shown | {"apiVersion", "timestamp"}
    assert gate["counters"].keys() == {"challenges", "purchases", "calls", "failures", "revenue"}


@row_on_both("2.1-rule-7")
async def test_a_create_needs_price_and_target_and_has_the_decided_defaults(program: Program) -> None:
    for name in ("price", "targetUrl"):
        answer = await program.create(**{name: None})
        assert answer.refusal == (400, "MISSING_PARAMETER", "validation")
        assert answer.error["details"] == {"field": name}
    gate = await program.gate()
    defaults = {
        "method": "GET",
        "credits": 1,
        "title": "",
        "description": "",
        "assumeValid": False,
        "requireAuth": False,
        "headerAuthMode": "none",
        "resourceType": "url",
        "network": program.network,
        "mimeType": "application/json",
        "isEnabled": True,
    }
    assert {name: gate[name] for name in defaults} == defaults
    owner = program.new_wallet()
    bearer = (await program.login(owner, program.gateway_url))["accessToken"]
    owned = (await program.create(bearer, paymentAddress=None)).body
    assert owned["paymentAddress"] == owned["ownerWallet"] == owner.address
    assert Decimal(gate["price"]) == Decimal("0.01")


@row("2.6-user")
async def test_the_login_response_contains_the_user(world: World) -> None:
    wallet = Wallet()
    user = (await world.login(wallet))["user"]
    assert user.keys() == {"id", "walletAddress", "createdAt", "updatedAt"}
    assert type(user["id"]) is int
    assert user["walletAddress"] == wallet.address
    again = (await world.login(wallet, world.gateway_url))["user"]
    assert (again["id"], again["createdAt"]) == (user["id"], user["createdAt"])
