"""What goes out of the hub: kinds, verdicts, settlements, transfers, history, the public status of a payment."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.golden.place import PAYEE, Place, recorded_at, wallet
from tests.hub.version2 import in_version_2, with_offer
from tests.specification.client import Json
from tests.specification.settling import nonce_of, paused_mining
from tests.specification.solana_world import SolanaWorld
from tests.specification.world import World


def changed(asking: Json, part: str, **members: object) -> Json:
    """The body with these members of one part; None leaves one out."""
    found: dict[str, Any] = {**asking[part], **members}
    return {**asking, part: {name: value for name, value in found.items() if value is not None}}


async def test_supported_and_verify(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "supported_and_verify") as place:
        supported = await place.hub("supported", "GET", "/supported")
        known = {"If-None-Match": supported.header("etag")}
        await place.hub("supported, again", "GET", "/api/v1/supported", headers=known)
        good = world.asking(recipient=PAYEE)
        await place.hub("valid", "POST", "/verify", body=good)
        await place.hub("valid, explained", "POST", "/verify?explain=true", body=good)
        await place.hub("valid, under /api/v1", "POST", "/api/v1/verify", body=good)
        for title, body in _invalid(world, good).items():
            await place.hub(f"invalid: {title}", "POST", "/verify", body=body)
        await place.hub("invalid, explained", "POST", "/verify?explain=true", body=_invalid(world, good)["too little"])
        for title, body in _unreadable(good).items():
            await place.hub(f"unreadable: {title}", "POST", "/verify", body=body)
        on_solana = await solana.asking()
        await place.hub("valid on Solana", "POST", "/verify", body=on_solana)
        await place.hub("valid on Solana, explained", "POST", "/verify?explain=true", body=on_solana)
        more = changed(on_solana, "paymentRequirements", maxAmountRequired="10001")
        await place.hub("invalid on Solana: another amount", "POST", "/verify", body=more)
        none = {**on_solana, "paymentPayload": {**on_solana["paymentPayload"], "payload": {"transaction": "AA=="}}}
        await place.hub("invalid on Solana: no transaction", "POST", "/verify", body=none)


def _invalid(world: World, good: Json) -> dict[str, Json]:
    return {
        "too little": changed(good, "paymentRequirements", maxAmountRequired="10001"),
        "another recipient": changed(good, "paymentRequirements", payTo="0x" + "66" * 20),
        "another scheme": changed(good, "paymentRequirements", scheme="upto"),
        "another network": changed(good, "paymentRequirements", network="base"),
        "another asset": changed(good, "paymentRequirements", asset="0x" + "66" * 20),
        "another version": {**good, "x402Version": 3},
        "not covered": world.asking(payer=wallet("poor"), recipient=PAYEE),
    }


def _unreadable(good: Json) -> dict[str, Json]:
    return {
        "nothing": {},
        "no requirements": {"x402Version": 1, "paymentPayload": good["paymentPayload"]},
        "no recipient": changed(good, "paymentRequirements", payTo=None),
        "a bad address": changed(good, "paymentRequirements", payTo="0x12"),
        "a bad amount": changed(good, "paymentRequirements", maxAmountRequired="0.01"),
        "a payload of another type": {**good, "paymentPayload": 1},
    }


async def test_settlements(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "settlements") as place:
        good = world.asking(recipient=PAYEE)
        await place.hub("settled and confirmed", "POST", "/settle", body={**good, "confirm": True})
        await place.hub("settled again", "POST", "/settle", body={**good, "confirm": True})
        await place.hub("verified after that", "POST", "/verify", body=good)
        path = f"/payments/base-sepolia/{world.buyer.address}/{nonce_of(good)}"
        status = await place.hub("its public status", "GET", path)
        known = {"If-None-Match": status.header("etag")}
        await place.hub("its public status, again", "GET", path, headers=known)
        fast = world.asking(recipient=PAYEE)
        await place.hub("settled and not confirmed", "POST", "/settle", body=fast)
        row = {**world.asking(recipient=PAYEE), "confirm": True, "useDbId": True}
        await place.hub("settled, told by its row", "POST", "/settle", body=row)
        keyed, key = {**world.asking(recipient=PAYEE), "confirm": True}, {"Idempotency-Key": "golden-1"}
        await place.hub("settled under a key", "POST", "/settle", body=keyed, headers=key)
        await place.hub("settled under a key, again", "POST", "/settle", body=keyed, headers=key)
        await place.hub("the key with another payment", "POST", "/settle", body=good, headers=key)
        await place.hub("not covered", "POST", "/settle", body=world.asking(payer=wallet("poor"), recipient=PAYEE))
        await place.hub(
            "too little", "POST", "/settle", body=_invalid(world, world.asking(recipient=PAYEE))["too little"]
        )
        await place.hub("nothing", "POST", "/settle", body={})
        await place.hub("a bad amount", "POST", "/settle", body=_unreadable(good)["a bad amount"])
        await _pending(place)
        await _on_solana(place, solana)


async def _pending(place: Place) -> None:
    world, reader = place.world, wallet("waiting")
    body = {**world.asking(recipient=reader.address), "confirm": True}
    async with paused_mining(world):
        short = {"Prefer": "wait=1"}
        await place.hub("not mined in time", "POST", "/settle", body=body, headers=short)
        path = f"/payments/base-sepolia/{world.buyer.address}/{nonce_of(body)}"
        await place.hub("not mined yet: its public status", "GET", path)
        token = await place.access_token(reader, world.hub_url)
        await place.hub("not mined yet: the history", "GET", "/api/v1/history?limit=1", token)
        moved = world.moving(recipient=reader.address)
        await place.hub("a transfer not mined in time", "POST", "/transfer", body=moved, headers=short)


async def _on_solana(place: Place, solana: SolanaWorld) -> None:
    body = {**await solana.asking(), "confirm": True}
    settled = await place.hub("on Solana: settled and confirmed", "POST", "/settle", body=body)
    await place.hub("on Solana: settled again", "POST", "/settle", body=body)
    path = f"/payments/solana-devnet/{settled.body['transaction']}"
    await place.hub("on Solana: by its transaction, which is no name", "GET", path)
    await place.hub("on Solana: not covered", "POST", "/settle", body=await solana.asking(10**15))


async def test_version_2(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "version_2_at_the_hub") as place:
        good = in_version_2(world.asking(recipient=PAYEE))
        await place.hub("valid", "POST", "/verify", body=good)
        await place.hub("valid, explained", "POST", "/verify?explain=true", body=good)
        for title, body in _invalid_in_version_2(good).items():
            await place.hub(f"invalid: {title}", "POST", "/verify", body=body)
            await place.hub(f"refused: {title}", "POST", "/settle", body=body)
        less = changed(good, "paymentRequirements", amount=None)
        await place.hub("unreadable: no amount", "POST", "/verify", body=less)
        await place.hub("settled", "POST", "/settle", body={**good, "confirm": True})
        await place.hub("settled again", "POST", "/settle", body={**good, "confirm": True})
        await place.hub("verified after that", "POST", "/verify", body=good)
        waiting = {**in_version_2(world.asking(recipient=PAYEE)), "confirm": True}
        async with paused_mining(world):
            await place.hub("not mined in time", "POST", "/settle", body=waiting, headers={"Prefer": "wait=1"})
        await place.hub("the identical request once it is mined", "POST", "/settle", body=waiting)
        on_solana = {**in_version_2(await solana.asking()), "confirm": True}
        await place.hub("on Solana: valid", "POST", "/verify", body=on_solana)
        await place.hub("on Solana: settled", "POST", "/settle", body=on_solana)


def _invalid_in_version_2(good: Json) -> dict[str, Json]:
    return {
        "too little": with_offer(good, amount="10001"),
        "too much": with_offer(good, amount="9999"),
        "another scheme": with_offer(good, scheme="upto"),
        "another network": with_offer(good, network="eip155:10"),
        "a payment of version 1": changed(good, "paymentPayload", x402Version=1),
    }


async def test_payment_status(world: World) -> None:
    with recorded_at(world, "payment_status") as place:
        payer, nonce = world.buyer.address, "0x" + hashlib.sha256(b"golden").hexdigest()
        await place.hub("unknown", "GET", f"/payments/base-sepolia/{payer}/{nonce}")
        await place.hub("a bad nonce", "GET", f"/payments/base-sepolia/{payer}/0x12")
        await place.hub("a bad network", "GET", f"/payments/nowhere/{payer}/{nonce}")
        await place.hub("unknown on Solana", "GET", f"/payments/solana-devnet/{nonce[2:]}")


async def test_transfers(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "transfers") as place:
        good = world.moving(recipient=PAYEE)
        await place.hub("made", "POST", "/transfer", body=good)
        await place.hub("made again", "POST", "/transfer", body=good)
        await place.hub("not covered", "POST", "/transfer", body=world.moving(payer=wallet("poor"), recipient=PAYEE))
        fresh = world.moving(recipient=PAYEE)
        await place.hub("of another amount", "POST", "/transfer", body={**fresh, "amount": "10001"})
        await place.hub("to another", "POST", "/transfer", body={**fresh, "recipient": "0x" + "66" * 20})
        await place.hub("of another asset", "POST", "/transfer", body={**fresh, "asset": "0x" + "66" * 20})
        await place.hub("on no network", "POST", "/transfer", body={**fresh, "network": "nowhere"})
        await place.hub("nothing", "POST", "/transfer", body={})
        await place.hub("made on Solana", "POST", "/transfer", body=await solana.moving())
        incomplete = {**await solana.moving(), "amount": None}
        await place.hub("on Solana without an amount", "POST", "/transfer", body=incomplete)


async def test_history(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "history") as place:
        reader = wallet("historian")
        gate = await place.gate("golden-history", paymentAddress=reader.address, title="Sold", credits=2)
        await world.buy(gate)
        await world.settle({**world.asking(recipient=reader.address), "confirm": True})
        await world.transfer(world.moving(recipient=reader.address))
        token = await place.access_token(reader, world.hub_url)
        page = await place.hub("the page", "GET", "/api/v1/history?limit=10", token)
        known = {"If-None-Match": page.header("etag")}
        await place.hub("the page again", "GET", "/api/v1/history?limit=10", token, headers=known)
        query = "/api/v1/history?limit=1&offset=1&network=base-sepolia&role=recipient"
        await place.hub("a part of it", "GET", query, token)
        one = page.body["history"][0]["id"]
        await place.hub("one", "GET", f"/api/v1/history/{one}", token)
        table = {"Accept": "text/csv"}
        await place.hub("as a table", "GET", "/api/v1/history?limit=10", token, headers=table)
        stranger = await place.access_token(wallet("stranger"), world.hub_url)
        await place.hub("another's", "GET", f"/api/v1/history/{one}", stranger)
        await place.hub("of a wallet that has none", "GET", "/api/v1/history?limit=10", stranger)
        await place.hub("no bearer", "GET", "/api/v1/history?limit=10")
        await place.hub("no limit", "GET", "/api/v1/history", token)
        await place.hub("a bad limit", "GET", "/api/v1/history?limit=101", token)
        await place.hub("a bad network", "GET", "/api/v1/history?limit=1&network=nowhere", token)
        on_solana = await solana.settled_item()
        assert on_solana["status"] == "success"
