"""A client of x402 version 2 written from its specification alone: it reads PAYMENT-REQUIRED, signs, reads receipts."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Final

from tests.gateway.solana_market import SolanaMarket
from tests.specification.client import Chain, Wallet, typed_data
from tollkeeper.sandbox.buyer import Answer, Buyer

Json = dict[str, Any]

SIGNED: Final = "PAYMENT-SIGNATURE"
EVM: Final = "eip155:84532"
SOLANA: Final = "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1"


def encoded(body: Json) -> str:
    return base64.b64encode(json.dumps(body, separators=(",", ":")).encode()).decode()


def decoded(header: str) -> Json:
    body: Json = json.loads(base64.b64decode(header, validate=True))
    return body


def required(answer: Answer) -> Json:
    """What a 402's header says."""
    assert answer.status == 402, answer.body
    return decoded(answer.headers["payment-required"])


def offers(answer: Answer) -> dict[str, Json]:
    """Its `accepts`, by network."""
    return {offer["network"]: offer for offer in required(answer)["accepts"]}


def receipt(answer: Answer) -> Json | None:
    """What the answer says of the payment."""
    shown = answer.headers.get("payment-response")
    return None if shown is None else decoded(shown)


def wallet_of(buyer: Buyer) -> Wallet:
    return Wallet("0x" + buyer.wallet.private_key.hex())


def authorized(offer: Json, wallet: Wallet, **changes: object) -> Json:
    """The payload that pays an EVM offer; `changes` are of the authorization, before it is signed."""
    chain = Chain(offer["asset"], chain_id=int(offer["network"].partition(":")[2]))
    wanted = {
        "from": wallet.address,
        "to": offer["payTo"],
        "value": offer["amount"],
        "validAfter": "0",
        "validBefore": str(int(time.time()) + offer["maxTimeoutSeconds"]),
        "nonce": "0x" + os.urandom(32).hex(),
        **changes,
    }
    domain = {"name": offer["extra"]["name"], "version": offer["extra"]["version"]}
    return {"signature": wallet.sign_typed(typed_data(wanted, chain, **domain)), "authorization": wanted}


def shown(offer: Json, payload: Json, **others: object) -> str:
    """The header of a payment that takes this offer; `others` are further members."""
    return encoded({"x402Version": 2, "payload": payload, "accepted": offer, **others})


def signed(offer: Json, wallet: Wallet, **changes: object) -> str:
    """The header of a fresh payment."""
    return shown(offer, authorized(offer, wallet, **changes))


def in_version_1(header: str) -> str:
    """The same payment as version 1 shows it."""
    body = decoded(header)
    payment = {"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "payload": body["payload"]}
    if "transaction" in body["payload"]:
        payment["network"] = "solana-devnet"
    return encoded(payment)


@dataclass(frozen=True, slots=True)
class Client:
    """Somebody with a wallet who buys at one gate."""

    buyer: Buyer
    url: str
    method: str = "GET"

    async def ask(self, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.buyer.ask(self.method, self.url, headers=named)

    async def pay(self, header: str, **headers: str) -> Answer:
        return await self.ask(PAYMENT_SIGNATURE=header, **headers)

    async def offer(self, network: str = EVM, **headers: str) -> Json:
        return offers(await self.ask(**headers))[network]

    async def payment(self, **changes: object) -> str:
        """A fresh payment of what the gate asks for now."""
        return signed(await self.offer(), wallet_of(self.buyer), **changes)

    async def call(self, **headers: str) -> Answer:
        """A call as a stock client makes it: it asks, signs what the 402 asks for, and asks again."""
        return await self.pay(await self.payment(), **headers)


async def transacted(market: SolanaMarket, offer: Json, **changes: Any) -> Json:
    """The payload that pays a Solana offer."""
    draft = await market.draft({**offer, "maxAmountRequired": offer["amount"]}, **changes)
    return {"transaction": draft.payload().transaction}
