"""A small x402 version 1 buyer: reads a 402, signs what it asks for, calls again; and logs in with its wallet.

It does what an official client does and nothing cleverer, so that the demo shows the protocol; by overriding what is
signed it also makes the wrong payments that a gate must refuse. Not a library for buyers: it trusts what it is asked.
"""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp

from tollkeeper.core.evm import (
    Authorization,
    authorization_digest,
    balance_of_calldata,
    checksum_address,
    domain_separator,
    parse_address,
    personal_message_digest,
    sign_digest,
)
from tollkeeper.core.networks import normalise
from tollkeeper.core.wire import EvmPayload, Payment, encode_payment_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tollkeeper.sandbox.wallets import TestWallet

_TIMEOUT_SECONDS: Final = 90
_CLOCK_SKEW_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object. Raises: ValueError."""
        parsed = json.loads(self.body)
        if not isinstance(parsed, dict):
            msg = "the body is not a JSON object"
            raise ValueError(msg)  # noqa: TRY004 - the text is wrong, not a Python type
        return parsed

    @property
    def error_code(self) -> str | None:
        """`error.code` of specification 7, or of `errorDetail` where the body is a 402's."""
        body = self.json()
        error = body["errorDetail"] if "errorDetail" in body else body.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        return code if isinstance(code, str) else None

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The decoded X-Payment-Response."""
        header = self.headers.get("x-payment-response")
        receipt = None if header is None else json.loads(base64.b64decode(header))
        return receipt if isinstance(receipt, dict) else None


def authorization_for(requirements: Mapping[str, Any], payer: str, nonce: bytes, now_seconds: int) -> Authorization:
    """What version 1 requirements ask the payer to sign."""
    return Authorization(
        payer=payer,
        pay_to=parse_address(requirements["payTo"]),
        value=int(requirements["maxAmountRequired"]),
        valid_after=now_seconds - _CLOCK_SKEW_SECONDS,
        valid_before=now_seconds + int(requirements["maxTimeoutSeconds"]),
        nonce="0x" + nonce.hex(),
    )


def payment_for(requirements: Mapping[str, Any], authorization: Authorization, private_key: bytes) -> str:
    """The `X-Payment` value of an authorization, signed under the token's domain as the requirements name it."""
    chain_id = normalise(requirements["network"]).chain_id
    extra = requirements["extra"]
    separator = domain_separator(extra["name"], extra["version"], chain_id or 0, parse_address(requirements["asset"]))
    signature = sign_digest(authorization_digest(separator, authorization), private_key)
    payload = EvmPayload(_spelled(authorization), signature)
    return encode_payment_header(Payment(1, requirements["scheme"], requirements["network"], payload))


def _spelled(authorization: Authorization) -> Authorization:
    """The authorization with its addresses in EIP-55 spelling, as clients send it."""
    return replace(
        authorization,
        payer=checksum_address(authorization.payer),
        pay_to=checksum_address(authorization.pay_to),
    )


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
        if self._session is None:
            msg = "use the buyer as a context manager"
            raise RuntimeError(msg)
        async with self._session.request(
            method, url, json=body, data=form, headers=headers, allow_redirects=False
        ) as response:
            names = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, names, await response.read())

    def sign(self, challenge: Mapping[str, Any], change: Callable[[Authorization], Authorization] | None = None) -> str:
        """The `X-Payment` value that pays the first of a 402's requirements; `change` alters what is signed."""
        requirements = challenge["accepts"][0]
        wanted = authorization_for(requirements, self.wallet.address, os.urandom(32), int(time.time()))
        return payment_for(requirements, wanted if change is None else change(wanted), self.wallet.private_key)

    async def call(self, url: str, payment: str) -> Answer:
        """A call with a payment."""
        return await self.ask("GET", url, headers={"X-Payment": payment})

    async def login(self, base_url: str) -> str:
        """An access token of the hub or gateway at `base_url` (specification 5). Raises: ValueError when refused."""
        wallet = checksum_address(self.wallet.address)
        asked = await self.ask("GET", f"{base_url}/api/v1/auth/message?walletAddress={wallet}")
        if asked.status != 200:
            msg = f"no login message: {asked.status}"
            raise ValueError(msg)
        message = asked.json()["message"]
        signature = sign_digest(personal_message_digest(message.encode()), self.wallet.private_key)
        login = {"message": message, "signature": "0x" + signature.hex()}
        answer = await self.ask("POST", f"{base_url}/api/v1/auth/login", body=login)
        if answer.status != 200:
            msg = f"login refused: {answer.status}"
            raise ValueError(msg)
        token: str = answer.json()["accessToken"]
        return token

    async def balance_micro(self, rpc_url: str, token: str, holder: str) -> int:
        """What an address holds of the token, in micro-units, as the node says. Raises: ValueError."""
        call = {"to": token, "data": "0x" + balance_of_calldata(holder).hex()}
        request = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [call, "latest"]}
        answer = (await self.ask("POST", rpc_url, body=request)).json()
        if not isinstance(answer.get("result"), str):
            msg = "the node did not tell the balance"
            raise ValueError(msg)  # noqa: TRY004 - the answer is wrong, not a Python type
        return int(answer["result"], 16)
