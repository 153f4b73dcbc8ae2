"""Signing of a 402's requirements by a buyer, on either family (specification 2.3; contract 4.1).

Clocks, nonces and blockhashes are given. The caller decides whether the requirements are acceptable.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tollkeeper.client.requests import RefusedError, ask
from tollkeeper.core.evm.encoding import (
    ZERO_ADDRESS,
    Authorization,
    authorization_digest,
    checksum_address,
    domain_separator,
    parse_address,
    sign_digest,
)
from tollkeeper.core.networks import CAIP2_NAMES, NETWORKS, Family, normalise
from tollkeeper.core.solana.paying import TransferTerms, sign_payment
from tollkeeper.core.wallets import parse_address_of, parse_wallet
from tollkeeper.core.x402.version1 import X402_VERSION, EvmPayload, Payment, encode_header, encode_payment_header
from tollkeeper.core.x402.version2 import PAYMENT_HEADER, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import aiohttp

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.core.x402.version1 import SolanaPayload

_TOKEN_NAMES: Final = frozenset({"USDC", "USD Coin"})  # as Circle deployed it, and as the specification writes it
_DOMAIN_VERSION: Final = "2"
_MEMO: Final = re.compile(r"[0-9A-Za-z._:-]{1,64}", re.ASCII)
_CLOCK_SKEW_SECONDS: Final = 60
_SIGNED_FOR_SECONDS: Final = 600  # at most: whoever refuses a payment now could carry it out until its end


def check_terms(requirements: JsonMapping, payer: str) -> None:
    """Refuse requirements that are not an ordinary payment of USDC to somebody else, to the letter.

    Whether network, asset and amount are those that the buyer wants is decided by who calls.
    Raises: ApiError, AttributeError, KeyError, TypeError, ValueError.
    """
    network, extra, seconds = (
        normalise(requirements["network"]),
        requirements["extra"],
        requirements["maxTimeoutSeconds"],
    )
    pay_to = parse_address_of(network.family, requirements["payTo"], field="payTo")
    if pay_to in {parse_wallet(payer), parse_wallet(network.usdc.address), ZERO_ADDRESS}:
        raise ValueError("payTo is the payer, the token or nobody")
    if type(seconds) is not int or seconds <= 0:
        raise ValueError("maxTimeoutSeconds is no number of seconds")
    if network.family is Family.EVM and (extra["name"] not in _TOKEN_NAMES or extra["version"] != _DOMAIN_VERSION):
        raise ValueError("extra names another token than USDC")
    if network.family is Family.SOLANA and extra.get("memo") and _MEMO.fullmatch(extra["memo"]) is None:
        raise ValueError("extra.memo is more than a reference, and a payment's memo is published as its payer's")


def authorization_for(requirements: JsonMapping, payer: str, nonce: bytes, now_seconds: int) -> Authorization:
    """Return the authorization that version 1 requirements on EVM ask the payer to sign."""
    return Authorization(
        payer=payer,
        pay_to=parse_address(requirements["payTo"]),
        value=int(requirements["maxAmountRequired"]),
        valid_after=now_seconds - _CLOCK_SKEW_SECONDS,
        valid_before=now_seconds + min(int(requirements["maxTimeoutSeconds"]), _SIGNED_FOR_SECONDS),
        nonce="0x" + nonce.hex(),
    )


def payment_for(requirements: JsonMapping, authorization: Authorization, private_key: bytes) -> str:
    """The `X-Payment` value of an authorization."""
    return Offer(dict(requirements)).shown(payload_for(requirements, authorization, private_key))["X-Payment"]


def payload_for(requirements: JsonMapping, authorization: Authorization, private_key: bytes) -> EvmPayload:
    """The authorization, signed under the token's domain as the requirements name it."""
    chain_id = normalise(requirements["network"]).chain_id
    extra = requirements["extra"]
    separator = domain_separator(extra["name"], extra["version"], chain_id or 0, parse_address(requirements["asset"]))
    signature = sign_digest(authorization_digest(separator, authorization), private_key)
    return EvmPayload(_spelled(authorization), signature)


def _spelled(authorization: Authorization) -> Authorization:
    """The authorization with its addresses in EIP-55 spelling, as clients send it."""
    return replace(
        authorization,
        payer=checksum_address(authorization.payer),
        pay_to=checksum_address(authorization.pay_to),
    )


def solana_terms(requirements: JsonMapping) -> TransferTerms:
    """Return the terms that version 1 requirements on Solana ask the payer to sign."""
    return TransferTerms(
        fee_payer=requirements["extra"]["feePayer"],
        pay_to=requirements["payTo"],
        mint=requirements["asset"],
        amount=int(requirements["maxAmountRequired"]),
        decimals=normalise(requirements["network"]).usdc.decimals,
    )


def solana_payment_for(
    requirements: JsonMapping, terms: TransferTerms, seed: bytes, blockhash: str, nonce: bytes
) -> str:
    """The `X-Payment` value of a transfer. Raises: as `solana_payload_for`."""
    return Offer(dict(requirements)).shown(solana_payload_for(requirements, terms, seed, blockhash, nonce))["X-Payment"]


def solana_payload_for(
    requirements: JsonMapping, terms: TransferTerms, seed: bytes, blockhash: str, nonce: bytes
) -> SolanaPayload:
    """The signed transfer; `nonce` makes it another payment than the last one.

    Raises: ValueError for terms that cannot be paid.
    """
    asked = requirements["extra"].get("memo")
    memo = asked.encode() if isinstance(asked, str) and asked else nonce.hex().encode()
    return sign_payment(terms, seed, blockhash, memo)


async def latest_blockhash(session: aiohttp.ClientSession, rpc_url: str | None) -> str:
    """The blockhash that a Solana payment is to hold, as the node tells it. Raises: RefusedError."""
    if rpc_url is None:
        raise RefusedError("a payment on Solana holds a recent blockhash: name a node that tells it, by --rpc-url")
    request = {"jsonrpc": "2.0", "id": 1, "method": "getLatestBlockhash", "params": [{"commitment": "confirmed"}]}
    answer = await ask(session, "POST", rpc_url, json=request)
    try:
        blockhash = answer["result"]["value"]["blockhash"]
    except (KeyError, TypeError):
        raise RefusedError(f"{rpc_url} is no Solana node: it tells no blockhash") from None
    return str(blockhash)


# Offers of a 402 to a buyer, and how a payment that takes an offer is sent, in both versions (contract 4.1, 10.1).
# Version 2's offers come first: they are in the header `PAYMENT-REQUIRED`, version 1's in the body. The signer decides
# whether an offer is acceptable.

# How a seller of version 2 may have the payment made and carried out, of what is signed here.
_FLOWS: Final = (None, "authorization", "upfront")
_METHODS: Final = (None, "eip3009")


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to pay. `requirements` are spelled as version 1 does; `accepted` is version 2's entry, to be repeated.

    Both are as the seller sent them: nothing in them was checked. `resource`: what version 2 says is sold.
    """

    requirements: JsonObject
    accepted: JsonMapping | None = None
    resource: JsonMapping | None = None

    def shown(self, payload: EvmPayload | SolanaPayload) -> dict[str, str]:
        """Return the header of a payment that takes this offer."""
        if self.accepted is None:
            asked = self.requirements
            payment = Payment(X402_VERSION, asked["scheme"], asked["network"], payload)
            return {"X-Payment": encode_payment_header(payment)}
        body: JsonObject = {"x402Version": VERSION, "payload": payload.body(), "accepted": self.accepted}
        if self.resource is not None:
            body["resource"] = self.resource
        return {PAYMENT_HEADER: encode_header(body)}


def offers_of(headers: Mapping[str, str], body: bytes) -> list[Offer]:
    """The offers of a 402 that could be read; `headers` by their names in lower case."""
    try:
        shown = base64.b64decode(headers.get("payment-required", ""), validate=True)
    except ValueError:
        shown = b""
    required, former = read_object(shown), read_object(body)
    offers: list[Offer] = []
    if required.get("x402Version") == VERSION:
        offers.extend(_of_version_2(required))
    if former.get("x402Version") == X402_VERSION:
        offers.extend(Offer(entry) for entry in _entries(former))
    return offers


def _of_version_2(required: JsonMapping) -> Iterator[Offer]:
    resource = required.get("resource")
    for entry in _entries(required):
        network, extra = entry.get("network"), entry.get("extra")
        name = CAIP2_NAMES.get(network) if isinstance(network, str) else None
        extra = extra if isinstance(extra, dict) else {}
        if name is None or extra.get("paymentFlow") not in _FLOWS or extra.get("assetTransferMethod") not in _METHODS:
            continue
        said = {**entry, "network": NETWORKS[name].v1_name, "maxAmountRequired": entry.get("amount")}
        yield Offer(said, entry, resource if isinstance(resource, dict) else None)


def _entries(said: JsonMapping) -> Iterator[JsonObject]:
    offered = said.get("accepts")
    if isinstance(offered, list):
        yield from (entry for entry in offered if isinstance(entry, dict))


def read_object(data: bytes) -> JsonObject:
    """The JSON object in these bytes; empty where there is none."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
