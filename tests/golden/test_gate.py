"""What goes out at a gate: 402s, preflights, paid answers, refusals."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.golden.place import PAYEE, Place, recorded_at, wallet
from tests.specification.client import Json, header, payment, typed_data
from tests.specification.solana_world import SolanaWorld
from tests.specification.world import World

SHAPE_A, SHAPE_B = ({"Accept": f'application/json;profile="x402-{one}"'} for one in "ab")
SOLD = {"title": "Weather", "description": "The weather of one place — now", "credits": 5}


async def test_402(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "402") as place:
        plain = await place.gate("golden-402")
        await place.call("without payment", plain)
        await place.call("by HEAD", plain, method="HEAD")
        await place.call("in shape A", plain, headers=SHAPE_A)
        await place.call("in shape B", plain, headers=SHAPE_B)
        await place.call("in a shape of weight 0", plain, headers={"Accept": SHAPE_A["Accept"] + ";q=0"})
        await place.call("to a page", plain, headers={"Origin": "https://shop.example", "Accept": "text/html"})
        titled = await place.gate("golden-402-titled", **SOLD, price="1.50", mimeType="text/plain", method="GET, POST")
        await place.call("with title, description, price, type and credits", titled)
        await place.call("by POST", titled, method="POST", body={"of": "you"})
        await place.call("the same in shape B", titled, headers=SHAPE_B)
        below = await place.gate("golden-402-below", allowSubpaths=True)
        await place.call("below the slug, with a query", below, below="/a/b?c=d&e=f")
        bound = await place.gate(
            "golden-402-token", creditBinding="token", creditsExpireAfter=86400, onFailure="restore"
        )
        await place.call("credits bound to a token, that expire and are given back", bound)
        of_wallet = await place.gate("golden-402-wallet", creditBinding="wallet")
        await place.call("credits bound to a wallet", of_wallet)
        guarded = await place.gate("golden-402-guarded", requireAuth=True)
        bearer = await place.access_token(wallet("reader"))
        await place.call("with a bearer where one is needed", guarded, headers={"Authorization": f"Bearer {bearer}"})
        signed = await place.gate("golden-402-signed", headerAuthMode="hmac")
        await place.call("of a gate that signs", signed)
        on_solana = await place.gate("golden-402-solana", **solana.sold_to, credits=3)
        await place.call("on Solana", on_solana)
        await place.call("on Solana in shape A", on_solana, headers=SHAPE_A)
        await place.call("on Solana in shape B", on_solana, headers=SHAPE_B)
        also = {"accepts": [{"network": "solana-devnet", "paymentAddress": solana.owner}]}
        on_both = await place.gate("golden-402-both", **also)
        await place.call("on two families: the gate's own first", on_both)
        other = {"X-Payment-Network": "solana-devnet"}
        await place.call("on two families: the other one", on_both, headers=other)
        await place.call("on two families: one that it has not", on_both, headers={"X-Payment-Network": "base"})
        gone = await place.gate("golden-402-off", isEnabled=False)
        await place.call("of a gate that sells nothing", gone)


async def test_preflights(world: World) -> None:
    with recorded_at(world, "preflights") as place:
        gate = await place.gate("golden-preflight", method="GET, POST, DELETE")
        page = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
        await place.call("of a page", gate, method="OPTIONS", headers=page)
        wanted = {**page, "Access-Control-Request-Headers": "x-payment, content-type, traceparent"}
        await place.call("of a page that sends headers", gate, method="OPTIONS", headers=wanted)
        await place.call("OPTIONS without an origin", gate, method="OPTIONS")
        own = await place.gate("golden-preflight-own", method="OPTIONS")
        await place.call("of a gate that sells OPTIONS", own, method="OPTIONS", headers=page)
        await place.call("OPTIONS of a gate that sells it", own, method="OPTIONS")
        await place.gateway("of no gate", "OPTIONS", "/golden-none", headers=wanted)
        await place.gateway("of the management", "OPTIONS", "/api/v1/paygates", headers=wanted)
        await place.gateway("the management from a page", "GET", "/api/v1/paygates", headers=page)
        await place.hub("of the hub", "OPTIONS", "/verify", headers=wanted)
        await place.hub("the hub from a page", "GET", "/supported", headers=page)


async def test_paid(world: World, solana: SolanaWorld, target: RecordingTarget) -> None:
    with recorded_at(world, "paid") as place:
        await _bought_and_held(place)
        await _bound(place)
        await _kinds_of_answers(place, target)
        on_solana = await place.gate("golden-paid-solana", **solana.sold_to, credits=2)
        paid = await solana.payment(on_solana)
        await place.call("on Solana: the call that buys", on_solana, paid)
        await place.call("on Solana: a call on held credits", on_solana, paid)
        await place.call("on Solana: credits used up", on_solana, paid)
        trusted = await place.gate("golden-paid-trusted", assumeValid=True)
        await place.call("at a gate that trusts", trusted, await world.payment(trusted))


async def _bought_and_held(place: Place) -> None:
    gate = await place.gate("golden-paid", credits=3, method="GET, POST")
    paid = await place.world.payment(gate)
    first = await place.call("the call that buys", gate, paid)
    await place.call("a call on held credits", gate, paid)
    token = {"X-Credit-Token": first.header("x-credit-token")}
    await place.call("a call by credit token", gate, headers=token, method="POST", content=b"what is asked")
    await place.call("credits used up, by token", gate, headers=token)
    await place.call("credits used up, in shape A", gate, headers={**token, **SHAPE_A})
    gate = await place.gate("golden-paid-up")
    paid = await place.world.payment(gate)
    await place.call("the one call of a purchase", gate, paid, method="HEAD")
    await place.call("credits used up", gate, paid)
    await place.call("credits used up, in shape B", gate, paid, headers=SHAPE_B)


async def _bound(place: Place) -> None:
    world = place.world
    gate = await place.gate("golden-paid-token", creditBinding="token", credits=2)
    paid = await world.payment(gate)
    first = await place.call("bound to a token: the call that buys", gate, paid)
    await place.call("bound to a token: the payment again", gate, paid)
    token = {"X-Credit-Token": first.header("x-credit-token")}
    await place.call("bound to a token: by token", gate, headers=token)
    gate = await place.gate("golden-paid-wallet", creditBinding="wallet", credits=2)
    paid, bearer = await world.payment(gate), {"Authorization": "Bearer " + await place.access_token(world.buyer)}
    await place.call("bound to a wallet: the call that buys", gate, paid, headers=bearer)
    await place.call("bound to a wallet: by bearer", gate, headers=bearer)
    await place.call("bound to a wallet: used up", gate, headers=bearer)


async def _kinds_of_answers(place: Place, target: RecordingTarget) -> None:
    def answering(*parts: bytes) -> Any:
        async def answer(_request: Received, writer: Writer) -> None:
            for part in parts:
                writer.write(part)
                await writer.drain()

        return answer

    usual, gate = target.answer, await place.gate("golden-answers", credits=20, allowSubpaths=True)
    paid = await place.world.payment(gate)
    answers = {
        "headers that are not passed on": (
            b'HTTP/1.1 201 Created\r\nDate: Fri, 01 Jan 2027 00:00:00 GMT\r\nETag: "x"\r\nX-Credits-Total: 9\r\n'
            b"Set-Cookie: a=b\r\nX-Payment-Response: e30=\r\nX-Accel-Redirect: /x\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
            b"Access-Control-Allow-Origin: https://x.example\r\nX-Own: 1\r\nCache-Control: max-age=60\r\n"
            b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
        ),
        "a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>",
        "nothing": b"HTTP/1.1 204 No Content\r\n\r\n",
        "not modified": b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n',
        "in pieces": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        "not found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "a fault": b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops",
        "elsewhere": b"HTTP/1.1 302 Found\r\nLocation: https://other.example/x\r\nContent-Length: 0\r\n\r\n",
        "below the gate": b"HTTP/1.1 302 Found\r\nLocation: /x?y=z\r\nContent-Length: 0\r\n\r\n",
    }
    for name, answer in answers.items():
        target.answer = answering(answer)
        await place.call(f"the target answers: {name}", gate, paid)
    target.answer = usual
    streamed = await place.gate("golden-streamed", credits=2, stream=True)
    paid = await place.world.payment(streamed)
    await place.call("streamed", streamed, paid)
    target.answer = answering(answers["in pieces"])
    await place.call("streamed in pieces", streamed, paid)
    target.answer = usual


async def test_refusals(world: World, solana: SolanaWorld) -> None:
    with recorded_at(world, "refusals") as place:
        await _unreadable(place)
        await _wrong(place)
        await _used(place)
        await _not_this_way(place)
        await _wrong_on_solana(place, solana)


async def _unreadable(place: Place) -> None:
    gate = await place.gate("golden-refused", price="0.02")
    await place.call("no base64", gate, "?")
    await place.call("no JSON", gate, base64.b64encode(b"nothing").decode())
    await place.call("no object", gate, base64.b64encode(b"[]").decode())
    await place.call("too long", gate, "A" * 9000)
    good = json.loads(base64.b64decode(await place.world.payment(gate)))
    changes: dict[str, Json] = {
        "no version": {"x402Version": None},
        "version 2": {"x402Version": 2},
        "another scheme": {"scheme": "upto"},
        "no such network": {"network": "nowhere"},
        "a network that the gate has not": {"network": "base"},
        "no payload": {"payload": {}},
        "no signature": {"payload": {**good["payload"], "signature": "0x"}},
    }
    for title, change in changes.items():
        await place.call(title, gate, header({**good, **change}))
    await place.call("two payments", gate, f"{header(good)}, {header(good)}")
    await place.call("unreadable, asked in shape A", gate, "?", headers=SHAPE_A)
    await place.call("unreadable, asked in shape B", gate, "?", headers=SHAPE_B)


async def _wrong(place: Place) -> None:
    world = place.world
    gate = await place.gate("golden-wrong", price="0.02")
    # What is recovered of a wrong signature is the same in each run, for so is what was signed.
    wanted = await world.wanted(gate, nonce="0x" + "67" * 32, validBefore="4000000000")
    await place.call("too little", gate, await world.payment(gate, value="19999"))
    await place.call("to somebody else", gate, await world.payment(gate, to="0x" + "66" * 20))
    await place.call("expired", gate, await world.payment(gate, validBefore="1700000000"))
    await place.call(
        "not valid yet", gate, await world.payment(gate, validAfter="1999999999", validBefore="2000000000")
    )
    await place.call("signed under another name", gate, header(payment(wanted, world.sign(wanted, name="USDC"))))
    other = {**wanted, "from": wallet("stranger").address}
    await place.call("signed by somebody else", gate, header(payment(other, world.sign(wanted))))
    poor = wallet("poor")
    unfunded = {**wanted, "from": poor.address}
    signature = poor.sign_typed(typed_data(unfunded, world.chain))
    await place.call("not covered", gate, header(payment(unfunded, signature)))
    await place.call("not covered, asked in shape A", gate, header(payment(unfunded, signature)), headers=SHAPE_A)


async def _used(place: Place) -> None:
    world = place.world
    one, other = await place.gate("golden-used"), await place.gate("golden-used-elsewhere")
    paid, _ = await world.buy(one)
    await place.call("claimed at another gate", other, paid)
    settled = world.asking(recipient=PAYEE)
    await world.settle({**settled, "confirm": True})
    await place.call("settled for another server", one, header(settled["paymentPayload"]))
    many = await place.gate("golden-used-many", credits=3)
    paid, first = await world.buy(many)
    again = header(json.loads(base64.b64decode(paid)) | {"x": 1})
    await place.call("the same payment in other bytes", many, again)
    token = {"X-Credit-Token": first.headers["x-credit-token"]}
    await place.call("(the token is used)", many, headers=token)
    await place.call("the payment after its token was used", many, paid)
    await place.call("a token that is none", many, headers={"X-Credit-Token": "nothing"})
    await place.call("the token of another gate", one, headers=token)


async def _not_this_way(place: Place) -> None:
    world = place.world
    gate = await place.gate("golden-ways", method="GET, POST")
    await place.call("another method", gate, method="PUT", content=b"")
    await place.gateway("no gate", "GET", "/golden-none")
    await place.gateway(
        "no gate, with a payment", "GET", "/golden-none", headers={"X-Payment": await world.payment(gate)}
    )
    await place.call("below a gate that has nothing there", gate, below="/x")
    below = await place.gate("golden-ways-below", allowSubpaths=True)
    await place.call("out of the target", below, await world.payment(below), below="/%2e%2e/x")
    guarded = await place.gate("golden-ways-guarded", requireAuth=True)
    await place.call("no bearer", guarded)
    await place.call("no bearer, by HEAD", guarded, method="HEAD")
    await place.call("a bearer that is none", guarded, headers={"Authorization": "Bearer x"})
    await place.call("no bearer, with a payment", guarded, await world.payment(gate))
    of_wallet = await place.gate("golden-ways-wallet", creditBinding="wallet")
    await place.call("bound to a wallet: no bearer", of_wallet, await world.payment(of_wallet))
    bearer = {"Authorization": "Bearer " + await place.access_token(wallet("reader"))}
    await place.call("bound to a wallet: another's", of_wallet, await world.payment(of_wallet), headers=bearer)
    await place.call("bound to a wallet: nothing held", of_wallet, headers=bearer)
    await place.call("too large a body", gate, method="POST", headers={"X-Payment": "?"}, content=b"x" * 104_857_601)
    await place.call("too large a head", gate, headers={"X-Long": "x" * 40_000})
    await place.call("too many headers", gate, headers={f"X-{n}": "x" for n in range(300)})
    off = await place.gate("golden-ways-off", credits=2)
    paid = await world.payment(off)
    await world.update(off, isEnabled=False)
    await place.call("a payment where nothing is sold", off, paid)


async def _wrong_on_solana(place: Place, solana: SolanaWorld) -> None:
    gate = await place.gate("golden-refused-solana", **solana.sold_to)
    await place.call("on Solana: too little", gate, await solana.payment(gate, value=1))
    stranger = str(solana.buyer.pubkey())
    await place.call("on Solana: to somebody else", gate, await solana.payment(gate, recipient=stranger))
    await place.call("on Solana: not signed", gate, await solana.payment(gate, is_signed=False))
    nothing = {"x402Version": 1, "scheme": "exact", "network": "solana-devnet", "payload": {"transaction": "AA=="}}
    await place.call("on Solana: no transaction", gate, header(nothing))
