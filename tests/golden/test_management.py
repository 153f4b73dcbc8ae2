"""What goes out of the gateway's API: gates, logins, credits, statistics, direct transfers, descriptions."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.golden.place import GATES, PAYEE, Place, recorded_at, solana_wallet, wallet
from tests.specification.client import Json, header
from tests.specification.solana_world import SolanaWorld
from tests.specification.world import World

EVERYTHING = {
    "slug": "golden-whole",
    "targetUrl": "https://192.0.2.1/x?plan=basic",
    "price": "12.345678",
    "credits": 7,
    "method": "get, POST",
    "title": "Whole",
    "description": "Every field — set",
    "assumeValid": True,
    "requireAuth": True,
    "paymentAddress": PAYEE,
    "headerAuthMode": "hmac",
    "network": "base-sepolia",
    "mimeType": "text/plain",
    "allowSubpaths": True,
    "stream": True,
    "creditBinding": "wallet",
    "onFailure": "restore",
    "isEnabled": True,
    "targetHeaders": {"X-Api-Key": "secret"},
    "creditsExpireAfter": 3600,
}


async def test_paygates(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "paygates") as place:
        owner, other = [await place.access_token(wallet(name)) for name in ("owner", "other")]
        least = {"targetUrl": "https://192.0.2.1/", "price": "0.01"}
        await place.gateway("created with an owner", "POST", GATES, owner, body={**least, "slug": "golden-least"})
        whole = await place.gateway("created with every field", "POST", GATES, owner, body=EVERYTHING)
        path = f"{GATES}/{whole.body['id']}"
        onto = {**least, **solana.sold_to, "slug": "golden-on-solana"}
        await place.gateway("created on Solana", "POST", GATES, owner, body=onto)
        also = {"accepts": [{"network": "solana-devnet", "paymentAddress": solana.owner}], "slug": "golden-on-both"}
        await place.gateway("created on both", "POST", GATES, owner, body={**least, **also})
        read = await place.gateway("read", "GET", path, owner)
        known = {"If-None-Match": read.header("etag")}
        await place.gateway("read again", "GET", path, owner, headers=known)
        await place.gateway("listed", "GET", GATES + "?limit=2&offset=1", owner)
        await place.gateway("updated", "PUT", path, owner, body={"price": "1", "title": "", "stream": False})
        await place.gateway("its secret replaced", "POST", path + "/secret", owner)
        await place.gateway("no bearer", "GET", path)
        await place.gateway("another's", "GET", path, other)
        await place.gateway("another's, updated", "PUT", path, other, body={"price": "1"})
        await place.gateway("none", "GET", f"{GATES}/999999", owner)
        await place.gateway("no number", "GET", f"{GATES}/x", owner)
        await place.gateway("deleted", "DELETE", path, owner)
        await place.gateway("deleted again", "DELETE", path, owner)
        ownerless = await place.gateway("created by nobody", "POST", GATES, body={**least, "slug": "golden-ownerless"})
        claimed = f"{GATES}/{ownerless.body['id']}"
        await place.gateway("claimed", "POST", claimed + "/claim", owner)
        await place.gateway("claimed again", "POST", claimed + "/claim", other)
        await _refused(place, owner, least)


async def _refused(place: Place, owner: str, least: dict[str, Any]) -> None:
    changes: dict[str, Json] = {
        "no price": {"price": None},
        "no target": {"targetUrl": None},
        "a bad price": {"price": "-1"},
        "a bad address": {"paymentAddress": "0x12"},
        "a bad network": {"network": "nowhere"},
        "no credits": {"credits": 0},
        "a bad method": {"method": "FETCH"},
        "an unknown field": {"colour": "red"},
        "a bad slug": {"slug": "api"},
        "a taken slug": {"slug": "golden-least"},
        "a target that is no URL": {"targetUrl": "ftp://x"},
        "a header that is ours": {"targetHeaders": {"X-Payment": "x"}},
    }
    for title, change in changes.items():
        body = {name: value for name, value in {**least, **change}.items() if value is not None}
        await place.gateway(f"refused: {title}", "POST", GATES, owner, body=body)
    json_type = {"Content-Type": "application/json"}
    await place.gateway("refused: no JSON", "POST", GATES, owner, headers=json_type, content=b"{")
    await place.gateway("refused: a list", "POST", GATES, owner, headers=json_type, content=b"[]")
    await place.gateway("refused: no body", "POST", GATES, owner)
    await place.gateway("refused: too large", "POST", GATES, owner, headers=json_type, content=b" " * 70_000)
    await place.gateway("refused: a text", "POST", GATES, owner, headers={"Content-Type": "text/plain"}, content=b"x")
    await place.gateway("refused: a bad limit", "GET", GATES + "?limit=0", owner)
    once = {"Idempotency-Key": "golden key of forty characters, or so it says"}
    body = {**least, "slug": "golden-once"}
    await place.gateway("created once", "POST", GATES, owner, headers=once, body=body)
    await place.gateway("created once, sent again", "POST", GATES, owner, headers=once, body=body)
    await place.gateway("the key with another body", "POST", GATES, owner, headers=once, body=least)


async def test_logins(world: World) -> None:
    with recorded_at(world, "logins") as place:
        for base in ("", "/hub"):
            await _login(place, base)
        of_solana = solana_wallet("reader")
        path = f"/api/v1/auth/message?walletAddress={of_solana.address}"
        told = await place.gateway("the message of a Solana wallet", "GET", path)
        proof = {"message": told.body["message"], "signature": of_solana.sign_text(told.body["message"])}
        await place.gateway("a Solana wallet logs in", "POST", "/api/v1/auth/login", body=proof)


async def _login(place: Place, base: str) -> None:
    who, at = wallet("login"), f" at {'the hub' if base else 'the gateway'}"
    auth = base + "/api/v1/auth"
    told = await place.gateway("the message" + at, "GET", f"{auth}/message?walletAddress={who.address}")
    proof = {"message": told.body["message"], "signature": who.sign_text(told.body["message"])}
    tokens = await place.gateway("login" + at, "POST", f"{auth}/login", body=proof)
    bearer = tokens.body["accessToken"]
    await place.gateway("login again" + at, "POST", f"{auth}/login", body=proof)
    wrong = {**proof, "signature": wallet("other").sign_text("x")}
    await place.gateway("login with another's signature" + at, "POST", f"{auth}/login", body=wrong)
    await place.gateway("login without a signature" + at, "POST", f"{auth}/login", body={"message": "x"})
    await place.gateway("no wallet" + at, "GET", f"{auth}/message")
    await place.gateway("a bad wallet" + at, "GET", f"{auth}/message?walletAddress=0x12")
    await place.gateway("current user" + at, "GET", f"{auth}/me", bearer)
    await place.gateway("no current user" + at, "GET", f"{auth}/me")
    await place.gateway("a bad token" + at, "GET", f"{auth}/me", "x")
    await place.gateway("introspection" + at, "POST", f"{auth}/introspect", body={"token": bearer})
    await place.gateway("introspection of none" + at, "POST", f"{auth}/introspect", body={"token": "x"})
    again = {"refreshToken": tokens.body["refreshToken"]}
    await place.gateway("refresh" + at, "POST", f"{auth}/refresh", body=again)
    await place.gateway("refresh with none" + at, "POST", f"{auth}/refresh", body={"refreshToken": "x"})
    await place.gateway("logout" + at, "POST", f"{auth}/logout", bearer)
    await place.gateway("logout again" + at, "POST", f"{auth}/logout", bearer)
    await place.gateway("the keys" + at, "GET", base + "/.well-known/jwks.json")


async def test_credits(world: World) -> None:
    with recorded_at(world, "credits") as place:
        gate = await place.gate("golden-credits", credits=3, creditsExpireAfter=86400)
        payer = await place.funded("payer", 10_000)
        paid = header(world.asking(payer=payer, recipient=PAYEE)["paymentPayload"])
        first = await world.call(gate, paid)
        by_payment = await place.gateway("by payment", "GET", "/api/v1/credits", headers={"X-Payment": paid})
        known = {"X-Payment": paid, "If-None-Match": by_payment.header("etag")}
        await place.gateway("by payment, again", "GET", "/api/v1/credits", headers=known)
        token = {"X-Credit-Token": first.headers["x-credit-token"]}
        await place.gateway("by token", "GET", "/api/v1/credits", headers=token)
        bearer = await place.access_token(payer)
        await place.gateway("by bearer", "GET", "/api/v1/credits", bearer)
        stranger = await place.access_token(wallet("reader"))
        await place.gateway("by bearer, none", "GET", "/api/v1/credits", stranger)
        await place.gateway("by nothing", "GET", "/api/v1/credits")
        await place.gateway("by a payment that is none", "GET", "/api/v1/credits", headers={"X-Payment": "?"})
        unknown = header(world.asking()["paymentPayload"])
        await place.gateway(
            "by a payment that bought nothing", "GET", "/api/v1/credits", headers={"X-Payment": unknown}
        )
        await place.gateway("by a token that is none", "GET", "/api/v1/credits", headers={"X-Credit-Token": "x"})


async def test_statistics(world: World) -> None:
    with recorded_at(world, "statistics") as place:
        owner = await place.access_token(wallet("statistician"))
        fields = {"slug": "golden-statistics", "paymentAddress": PAYEE, "credits": 2}
        gate = (await world.create(owner, **fields)).body
        path = f"{GATES}/{gate['id']}"
        paid = await world.payment(gate)
        for proof in (paid, paid, "?"):
            await world.call(gate, proof)

        bearer = {"Authorization": f"Bearer {owner}"}
        async with asyncio.timeout(30):  # they are written a moment later
            while (await world.gateway("GET", path + "/requests", headers=bearer)).body["pagination"]["totalCount"] < 4:  # noqa: ASYNC110 - a program is asked
                await asyncio.sleep(0.05)
        await place.gateway("of a gate", "GET", path + "/stats", owner)
        await place.gateway("of all gates", "GET", "/api/v1/stats?bucket=day", owner)
        await place.gateway("the requests", "GET", path + "/requests", owner)
        await place.gateway("those that were served", "GET", path + "/requests?outcome=served&limit=1", owner)
        await place.gateway("the gate", "GET", path, owner)
        await place.gateway("no such outcome", "GET", path + "/requests?outcome=x", owner)
        await place.gateway("no such bucket", "GET", path + "/stats?bucket=year", owner)
        await place.gateway("no such time", "GET", "/api/v1/stats?from=yesterday", owner)
        await place.gateway("no bearer", "GET", "/api/v1/stats")


async def test_direct_transfers(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "direct_transfers") as place:
        signed = world.asking(recipient=PAYEE)["paymentPayload"]
        body, paid = {"network": "base-sepolia", **signed["payload"]}, header(signed)
        path = "/api/v1/transfer"
        await place.gateway("without payment", "POST", path, body=body)
        shape_a = {"Accept": 'application/json;profile="x402-a"'}
        await place.gateway("without payment, in shape A", "POST", path, body=body, headers=shape_a)
        other = header(world.asking(9_999, recipient=PAYEE)["paymentPayload"])
        await place.gateway("with another payment", "POST", path, body=body, headers={"X-Payment": other})
        await place.gateway("with no payment at all", "POST", path, body=body, headers={"X-Payment": "?"})
        await place.gateway("with its payment", "POST", path, body=body, headers={"X-Payment": paid})
        await place.gateway("the same again", "POST", path, body=body, headers={"X-Payment": paid})
        poor = world.asking(recipient=PAYEE, payer=wallet("poor"))["paymentPayload"]
        body = {"network": "base-sepolia", **poor["payload"]}
        await place.gateway("not covered", "POST", path, body=body, headers={"X-Payment": header(poor)})
        await place.gateway("nothing", "POST", path, body={})
        await place.gateway("no such network", "POST", path, body={**body, "network": "nowhere"})
        on_solana = (await solana.asking())["paymentPayload"]
        body = {"network": "solana-devnet", **on_solana["payload"]}
        await place.gateway("on Solana, without payment", "POST", path, body=body)
        paid = header(on_solana)
        await place.gateway("on Solana, with its payment", "POST", path, body=body, headers={"X-Payment": paid})


async def test_other_answers(world: World) -> None:
    with recorded_at(world, "other_answers") as place:
        for base in ("", "/hub"):
            at = f" of {'the hub' if base else 'the gateway'}"
            await place.gateway("liveness" + at, "GET", base + "/healthz")
            await place.gateway("readiness" + at, "GET", base + "/readyz")
            await place.gateway("description" + at, "HEAD", base + "/openapi.json")
            await place.gateway("documentation" + at, "HEAD", base + "/docs")
            await place.gateway("no such path" + at, "GET", base + "/api/v1/nothing")
            await place.gateway("no such method" + at, "PATCH", base + "/api/v1/auth/me")
        await place.gateway("the root", "GET", "/")
        await place.gateway("a name that is reserved", "GET", "/assets")
        await place.gateway("another origin", "GET", GATES, headers={"Origin": "https://shop.example"})
