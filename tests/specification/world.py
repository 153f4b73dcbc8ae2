"""The program on EVM networks as a reader of the specification meets it: payments and the chain's own word."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.gateway.recording_target import RecordingTarget
from tests.interop.stack import Stack
from tests.specification.client import (
    Chain,
    Http,
    Json,
    Wallet,
    authorization,
    header,
    payment,
    typed_data,
)
from tests.specification.program import Program


@dataclass(frozen=True, slots=True)
class World(Program):
    """The program, its node and a buyer with funds there."""

    rpc_url: str
    chain: Chain
    buyer: Wallet

    @property
    def network(self) -> str:
        return self.chain.network

    @property
    def sold_to(self) -> Json:
        return {}  # the program's own default

    def new_wallet(self) -> Wallet:
        return Wallet()

    async def payee(self) -> Wallet:
        return Wallet()

    async def underpayment(self, gate: Json) -> str:
        return await self.payment(gate, value="1")

    async def sale(self, value: int = 10_000, *, recipient: str | None = None) -> Json:
        return self.asking(value, recipient=recipient)

    async def direct_transfer(self) -> Json:
        return self.moving()

    async def wanted(self, gate: Json, **changes: object) -> Json:
        """The authorization that the 402 asks the buyer for: its `amount` times 1,000,000, to its `address`."""
        asked = (await self.asked(gate))["x402"]
        value = int(Decimal(asked["amount"]) * 1_000_000)
        return authorization(self.buyer.address, asked["address"], value) | changes

    def sign(self, wanted: Json, **domain: object) -> str:
        """The buyer's signature of an authorization."""
        return self.buyer.sign_typed(typed_data(wanted, self.chain, **domain))

    def signed(self, wanted: Json, **domain: object) -> Json:
        """The payment payload of an authorization, signed by the buyer."""
        return payment(wanted, self.sign(wanted, **domain), self.chain.network)

    async def payment(self, gate: Json, **changes: object) -> str:
        """An `X-Payment` value that the gate takes; `changes` are of the authorization."""
        return header(self.signed(await self.wanted(gate, **changes)))

    def requirements(self, recipient: str, value: int, **changes: object) -> Json:
        """PaymentRequirements as a resource server of somebody else sends them to the hub."""
        plain: Json = {
            "scheme": "exact",
            "network": self.chain.network,
            "maxAmountRequired": str(value),
            "resource": "https://shop.example/thing",
            "description": "",
            "mimeType": "application/json",
            "payTo": recipient,
            "maxTimeoutSeconds": 60,
            "asset": self.chain.token,
            "extra": {"name": "USD Coin", "version": "2"},
        }
        return {**plain, **changes}

    def asking(self, value: int = 10_000, *, payer: Wallet | None = None, recipient: str | None = None) -> Json:
        """A body for verify and settle: a payment of the payer (the buyer) to the recipient (a fresh wallet)."""
        payer = payer or self.buyer
        wanted = authorization(payer.address, recipient or Wallet().address, value)
        signature = payer.sign_typed(typed_data(wanted, self.chain))
        return {
            "x402Version": 1,
            "paymentPayload": payment(wanted, signature, self.chain.network),
            "paymentRequirements": self.requirements(wanted["to"], value),
        }

    def moving(
        self, value: int = 10_000, *, payer: Wallet | None = None, recipient: str | None = None, **changes: object
    ) -> Json:
        """A body for the hub's transfer: of the payer (the buyer) to the recipient (a fresh wallet)."""
        signed = self.asking(value, payer=payer, recipient=recipient)["paymentPayload"]
        plain = {"payload": signed["payload"], "network": signed["network"], "asset": self.chain.token, "confirm": True}
        return {**plain, **changes}

    async def funded(self, value: int) -> Wallet:
        """A fresh wallet that holds so much, from the buyer."""
        wallet = Wallet()
        answer = await self.settle({**self.asking(value, recipient=wallet.address), "confirm": True})
        assert answer.body["status"] == "success", answer.content
        return wallet

    async def item(self, wallet: Wallet, nonce: str) -> Json:
        """The item of the wallet's history that is about the authorization with this nonce."""
        items = (await self.history(wallet))["history"]
        (found,) = [item for item in items if item["x402Data"]["nonce"] == nonce]
        item: Json = found
        return item

    async def rpc(self, method: str, *params: object) -> Any:
        """What the network's node says."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self.http.send("POST", self.rpc_url, json=request)).body
        return answer["result"]

    async def balance(self, address: str) -> int:
        """USDC of an address in micro-units, as the node says."""
        call = {"to": self.chain.token, "data": "0x70a08231" + address[2:].lower().rjust(64, "0")}
        return int(await self.rpc("eth_call", call, "latest"), 16)


def of_stack(stack: Stack, target: RecordingTarget, http: Http, log: Path, database: Path) -> World:
    """The world around a running sandbox."""
    return World(
        gateway_url=stack.gateway_url,
        hub_url=stack.hub_url,
        rpc_url=stack.rpc_url,
        chain=Chain(stack.token),
        target=target,
        http=http,
        buyer=Wallet(stack.buyer_key),
        log=log,
        database=database,
    )
