"""A payment that was settled and is presented when its own time has passed (contract 4.3)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from dataclasses import replace

from tests.gateway.market import Market

VALID_SECONDS = 20


async def test_a_payment_that_was_settled_elsewhere_is_refused_as_used_and_not_as_too_late(market: Market) -> None:
    gate = await market.gate()
    challenge = (await market.buyer.ask("GET", gate["accessUrl"])).json()
    until = int(time.time()) + VALID_SECONDS
    payment = market.buyer.sign(challenge, lambda signed: replace(signed, valid_before=until))
    body = {
        "x402Version": 1,
        "paymentPayload": json.loads(base64.b64decode(payment)),
        "paymentRequirements": challenge["accepts"][0],
        "confirm": True,
    }
    hub_url = gate["accessUrl"].rpartition("/")[0] + "/hub"
    settled = (await market.buyer.ask("POST", f"{hub_url}/settle", body=body)).json()
    assert settled["success"] is True
    await asyncio.sleep(until - time.time() - 5)  # a payment must be valid for 6 s yet
    error = (await market.buyer.call(gate["accessUrl"], payment)).json()["error"]
    assert (error["code"], error["details"]["transaction"]) == ("NONCE_ALREADY_USED", settled["transaction"])
