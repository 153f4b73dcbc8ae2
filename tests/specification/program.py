"""The running program as a reader of the specification meets it, whatever family its gates are paid on.

What a test asks of a `Program` it asks on every family: `World` is the one on EVM networks, `PaidOnSolana` the other.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tests.engines import beside, tables_of
from tests.gateway.recording_target import RecordingTarget
from tests.specification.client import Answer, Http, Json

PAYGATES = "/api/v1/paygates"


class Signer(Protocol):
    """A wallet of any family, as a login needs it."""

    @property
    def address(self) -> str:
        """As the wallet shows it."""

    def sign_text(self, text: str) -> str:
        """The signature of a login message."""


@dataclass(frozen=True, slots=True)
class Program(ABC):
    """Gateway, hub, a target; `log` and `database` are the program's files."""

    gateway_url: str
    hub_url: str
    target: RecordingTarget
    http: Http
    log: Path
    database: Path

    @property
    @abstractmethod
    def network(self) -> str:
        """Where a gate is paid unless told otherwise."""

    @property
    @abstractmethod
    def sold_to(self) -> Json:
        """The fields of a gate that is paid there."""

    @abstractmethod
    def new_wallet(self) -> Signer:
        """A wallet that nobody has seen."""

    @abstractmethod
    async def payee(self) -> Signer:
        """A fresh wallet that can be paid."""

    @abstractmethod
    async def payment(self, gate: Json) -> str:
        """An `X-Payment` value that the gate takes."""

    @abstractmethod
    async def underpayment(self, gate: Json) -> str:
        """An `X-Payment` value of a micro-unit, which is too little for the gate."""

    @abstractmethod
    async def sale(self, value: int = 10_000, *, recipient: str | None = None) -> Json:
        """A body for verify and settle that is good, to the recipient or to anybody."""

    @abstractmethod
    async def direct_transfer(self) -> Json:
        """A body for the hub's transfer that is good."""

    async def gateway(self, method: str, path: str, **options: Any) -> Answer:
        """A request to the gateway."""
        return await self.http.send(method, self.gateway_url + path, **options)

    async def hub(self, method: str, path: str, **options: Any) -> Answer:
        """A request to the hub."""
        return await self.http.send(method, self.hub_url + path, **options)

    async def create(self, bearer: str | None = None, /, **fields: object) -> Answer:
        """Asks for a gate at the target; a field of None is left out."""
        wanted = {"targetUrl": self.target.url + "/", "price": "0.01", **self.sold_to, **fields}
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
        deadline = time.monotonic() + 30
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

    async def buy(self, gate: Json) -> tuple[str, Answer]:
        """A payment and the answer to the call that bought with it, which must have been served."""
        paid = await self.payment(gate)
        answer = await self.call(gate, paid, gate["method"].split(",")[0])
        assert answer.status == 200, answer.content
        return paid, answer

    async def verify(self, body: object) -> Answer:
        """The hub's verify."""
        return await self.hub("POST", "/verify", json=body)

    async def settle(self, body: object, **headers: str) -> Answer:
        """The hub's settle."""
        return await self.hub("POST", "/settle", json=body, headers=headers)

    async def transfer(self, body: object, **headers: str) -> Answer:
        """The hub's transfer."""
        return await self.hub("POST", "/transfer", json=body, headers=headers)

    async def login(self, wallet: Signer, base_url: str | None = None) -> Json:
        """Specification 5.3, at the hub unless told otherwise."""
        base_url = base_url or self.hub_url
        query = {"walletAddress": wallet.address}
        message = (await self.http.send("GET", f"{base_url}/api/v1/auth/message", params=query)).body["message"]
        proof = {"message": message, "signature": wallet.sign_text(message)}
        answer = await self.http.send("POST", f"{base_url}/api/v1/auth/login", json=proof)
        assert answer.status == 200, answer.content
        return answer.body

    async def history(self, wallet: Signer, **query: object) -> Json:
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

    def warnings(self, event: str) -> list[Json]:
        """What the program logged under this name."""
        whole = self.log.read_text(errors="replace").rpartition("\n")[0]  # a line may be just being written
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every table of the program's database."""
        with beside(self.database) as books:
            return {name: list(books.execute(f'SELECT * FROM "{name}"')) for name in tables_of(books)}  # noqa: S608 - its own


# Another program, composed for a test under the settings that it gives.
ProgramOfItsOwn: TypeAlias = Callable[..., AbstractAsyncContextManager[Program]]


def bearer_header(token: str | None) -> dict[str, str]:
    """`Authorization: Bearer <ACCESS_TOKEN>`; nothing without a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}
