"""The running program as a reader of the specification meets it: gates, payments, logins, the chain's own word."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from sqlite3 import connect
from typing import Any

from tests.gateway.recording_target import RecordingTarget
from tests.interop.stack import Stack
from tests.specification.client import (
    Answer,
    Chain,
    Http,
    Json,
    Wallet,
    authorization,
    header,
    payment,
    typed_data,
)

PAYGATES = "/api/v1/paygates"


@dataclass(frozen=True, slots=True)
class World:
    """Gateway, hub, node, a target, a buyer with funds; `log` and `database` are the program's files."""

    gateway_url: str
    hub_url: str
    rpc_url: str
    chain: Chain
    target: RecordingTarget
    http: Http
    buyer: Wallet
    log: Path
    database: Path

    async def gateway(self, method: str, path: str, **options: Any) -> Answer:
        """A request to the gateway."""
        return await self.http.send(method, self.gateway_url + path, **options)

    async def hub(self, method: str, path: str, **options: Any) -> Answer:
        """A request to the hub."""
        return await self.http.send(method, self.hub_url + path, **options)

    async def create(self, bearer: str | None = None, /, **fields: object) -> Answer:
        """Asks for a gate at the target; a field of None is left out."""
        wanted = {"targetUrl": self.target.url + "/", "price": "0.01", **fields}
        body = {name: value for name, value in wanted.items() if value is not None}
        return await self.gateway("POST", PAYGATES, json=body, headers=bearer_header(bearer))

    async def gate(self, **fields: object) -> Json:
        """A gate at the target: 0.01 USDC for one GET, unless told otherwise."""
        answer = await self.create(**fields)
        assert answer.status == 201, answer.content
        return answer.body

    async def update(self, gate: Json, **fields: object) -> Answer:
        """An update of these fields."""
        return await self.gateway("PUT", f"{PAYGATES}/{gate['id']}", json=fields)

    async def read(self, gate: Json) -> Json:
        """The gate as it is now."""
        return (await self.gateway("GET", f"{PAYGATES}/{gate['id']}")).body

    async def counters(self, gate: Json, wanted: Callable[[Json], bool]) -> Json:
        """The gate's counters once they are as wanted; they are written a moment later."""
        deadline = time.monotonic() + 5
        while True:
            found: Json = (await self.read(gate))["counters"]
            if wanted(found) or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.05)

    async def call(
        self,
        gate: Json,
        paid: str | None = None,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> Answer:
        """A call of the gate, with a payment or without one."""
        own = {} if paid is None else {"X-Payment": paid}
        return await self.http.send(method, gate["accessUrl"], headers={**(headers or {}), **own}, **options)

    async def asked(self, gate: Json) -> Json:
        """The 402's body."""
        answer = await self.call(gate, method=gate["method"].split(",")[0])
        assert answer.status == 402, answer.content
        return answer.body

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

    async def buy(self, gate: Json) -> tuple[str, Answer]:
        """A payment and the answer to the call that bought with it, which must have been served."""
        paid = await self.payment(gate)
        answer = await self.call(gate, paid, gate["method"].split(",")[0])
        assert answer.status == 200, answer.content
        return paid, answer

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

    async def verify(self, body: object) -> Answer:
        """The hub's verify."""
        return await self.hub("POST", "/verify", json=body)

    async def settle(self, body: object, **headers: str) -> Answer:
        """The hub's settle."""
        return await self.hub("POST", "/settle", json=body, headers=headers)

    def moving(
        self, value: int = 10_000, *, payer: Wallet | None = None, recipient: str | None = None, **changes: object
    ) -> Json:
        """A body for the hub's transfer: of the payer (the buyer) to the recipient (a fresh wallet)."""
        signed = self.asking(value, payer=payer, recipient=recipient)["paymentPayload"]
        plain = {"payload": signed["payload"], "network": signed["network"], "asset": self.chain.token, "confirm": True}
        return {**plain, **changes}

    async def transfer(self, body: object, **headers: str) -> Answer:
        """The hub's transfer."""
        return await self.hub("POST", "/transfer", json=body, headers=headers)

    async def funded(self, value: int) -> Wallet:
        """A fresh wallet that holds so much, from the buyer."""
        wallet = Wallet()
        answer = await self.settle({**self.asking(value, recipient=wallet.address), "confirm": True})
        assert answer.body["status"] == "success", answer.content
        return wallet

    async def login(self, wallet: Wallet, base_url: str | None = None) -> Json:
        """Specification 5.3, at the hub unless told otherwise."""
        base_url = base_url or self.hub_url
        query = {"walletAddress": wallet.address}
        message = (await self.http.send("GET", f"{base_url}/api/v1/auth/message", params=query)).body["message"]
        proof = {"message": message, "signature": wallet.sign_text(message)}
        answer = await self.http.send("POST", f"{base_url}/api/v1/auth/login", json=proof)
        assert answer.status == 200, answer.content
        return answer.body

    async def history(self, wallet: Wallet, **query: object) -> Json:
        """The wallet's history: the newest 100 items unless told otherwise."""
        bearer = (await self.login(wallet))["accessToken"]
        answer = await self.hub(
            "GET",
            "/api/v1/history",
            params={name: str(value) for name, value in {"limit": 100, **query}.items()},
            headers=bearer_header(bearer),
        )
        assert answer.status == 200, answer.content
        return answer.body

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

    def warnings(self, event: str) -> list[Json]:
        """What the program logged under this name."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every table of the program's database."""
        with closing(connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: list(database.execute(f'SELECT * FROM "{name}"')) for name in tables}  # noqa: S608 - its own


def bearer_header(token: str | None) -> dict[str, str]:
    """`Authorization: Bearer <ACCESS_TOKEN>`; nothing without a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


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
