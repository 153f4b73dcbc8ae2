"""A small x402 buyer: reads a 402, signs what it asks for, calls again; and logs in with its wallet.

It does what an official client does and nothing cleverer, so that the demo shows the protocol; by overriding what is
signed it also makes the wrong payments that a gate must refuse. Not a library for buyers: it trusts what it is asked.
"""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp

from tollkeeper.client.logins import log_in
from tollkeeper.client.payments import (
    authorization_for,
    offers_of,
    payload_for,
    payment_for,
    solana_payload_for,
    solana_payment_for,
    solana_terms,
)
from tollkeeper.core.evm.encoding import balance_of_calldata
from tollkeeper.core.solana.programs import associated_token_account

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tollkeeper.core.evm.encoding import Authorization
    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.keys.wallet_keys import WalletKey
    from tollkeeper.core.solana.paying import TransferTerms
    from tollkeeper.sandbox.wallets import SolanaWallet, TestWallet

_TIMEOUT_SECONDS: Final = 90


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> JsonObject:
        """The body, which must be a JSON object. Raises: ValueError."""
        parsed = json.loads(self.body)
        if not isinstance(parsed, dict):
            raise ValueError("the body is not a JSON object")  # noqa: TRY004 - the text is wrong, not a Python type
        return parsed

    @property
    def error_code(self) -> str | None:
        """`error.code` of specification 7, or of `errorDetail` where the body is a 402's."""
        body = self.json()
        error = body["errorDetail"] if "errorDetail" in body else body.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        return code if isinstance(code, str) else None

    @property
    def receipt(self) -> JsonObject | None:
        """The decoded X-Payment-Response."""
        header = self.headers.get("x-payment-response")
        receipt = None if header is None else json.loads(base64.b64decode(header))
        return receipt if isinstance(receipt, dict) else None


@dataclass(slots=True)
class Buyer:
    """A wallet with an HTTP client: `async with Buyer(wallet) as buyer:`."""

    wallet: TestWallet
    _session: aiohttp.ClientSession | None = field(default=None, repr=False)

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use the buyer as a context manager")
        return self._session

    async def ask(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        form: aiohttp.FormData | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; a body is sent as JSON, a form as it is. Raises: aiohttp.ClientError, TimeoutError."""
        async with self._open.request(
            method, url, json=body, data=form, headers=headers, allow_redirects=False
        ) as response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, names, await response.read())

    def sign(self, challenge: JsonMapping, change: Callable[[Authorization], Authorization] | None = None) -> str:
        """The `X-Payment` value that pays the first of a 402's requirements; `change` alters what is signed."""
        requirements = challenge["accepts"][0]
        wanted = authorization_for(requirements, self.wallet.address, os.urandom(32), int(time.time()))
        return payment_for(requirements, wanted if change is None else change(wanted), self.wallet.private_key)

    def take(self, unpaid: Answer) -> dict[str, str]:
        """The header of a fresh payment that takes a 402's first offer: version 2's where there is one."""
        offer = offers_of(unpaid.headers, unpaid.body)[0]
        wanted = authorization_for(offer.requirements, self.wallet.address, os.urandom(32), int(time.time()))
        return offer.shown(payload_for(offer.requirements, wanted, self.wallet.private_key))

    async def call(self, url: str, payment: str) -> Answer:
        """A call with a payment."""
        return await self.ask("GET", url, headers={"X-Payment": payment})

    async def login(self, base_url: str, key: WalletKey | None = None) -> str:
        """An access token of the hub or gateway at `base_url` (specification 5); `key` is another wallet's.

        Raises: RefusedError.
        """
        return await log_in(self._open, base_url, key or self.wallet.key)

    async def balance_micro(self, rpc_url: str, token: str, holder: str) -> int:
        """Return the address's balance of the token, in micro-units, as the node says. Raises: ValueError."""
        call = {"to": token, "data": "0x" + balance_of_calldata(holder).hex()}
        return int(await self.node(rpc_url, "eth_call", call, "latest"), 16)

    async def node(self, rpc_url: str, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
        """Return a node's answer. Raises: ValueError if it refuses."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = (await self.ask("POST", rpc_url, body=request)).json()
        if "result" not in answer:
            raise ValueError(f"the node refused {method}: {answer.get('error')}")
        return answer["result"]


# A buyer on the sandbox's Solana chain: signs what a 402 asks, and asks the chain what everybody may ask.

_MEMO_SIZE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SolanaBuyer:
    """A wallet, the client that it asks with, and a node."""

    wallet: SolanaWallet
    client: Buyer
    rpc_url: str

    async def node(self, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
        """Return the node's answer. Raises: ValueError if it refuses."""
        return await self.client.node(self.rpc_url, method, *params)

    async def sign(self, challenge: JsonMapping, change: Callable[[TransferTerms], TransferTerms] | None = None) -> str:
        """The `X-Payment` value that pays the first of a 402's requirements; `change` alters what is signed."""
        requirements = challenge["accepts"][0]
        asked = solana_terms(requirements)
        terms = asked if change is None else change(asked)
        blockhash = (await self.node("getLatestBlockhash"))["value"]["blockhash"]
        return solana_payment_for(requirements, terms, self.wallet.seed, blockhash, os.urandom(_MEMO_SIZE_BYTES))

    async def take(self, unpaid: Answer) -> dict[str, str]:
        """The header of a fresh payment that takes a 402's first offer: version 2's where there is one."""
        offer = offers_of(unpaid.headers, unpaid.body)[0]
        blockhash = (await self.node("getLatestBlockhash"))["value"]["blockhash"]
        terms, nonce = solana_terms(offer.requirements), os.urandom(_MEMO_SIZE_BYTES)
        return offer.shown(solana_payload_for(offer.requirements, terms, self.wallet.seed, blockhash, nonce))

    async def balance_micro(self, owner: str, mint: str) -> int:
        """Return the wallet's balance of the token, in micro-units."""
        found = await self.node("getTokenAccountBalance", associated_token_account(owner, mint))
        return int(found["value"]["amount"])

    async def lamports(self, owners: list[str]) -> int:
        """Return the sum of these accounts' lamports."""
        return sum([int((await self.node("getBalance", owner))["value"]) for owner in owners])
