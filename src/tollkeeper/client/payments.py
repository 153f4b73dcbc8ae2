"""Signing of a 402's requirements by a buyer, on either family (specification 2.3; contract 4.1).

Clocks, nonces and blockhashes are given. The caller decides whether the requirements are acceptable.
"""

from __future__ import annotations

import re
from dataclasses import replace
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
from tollkeeper.core.networks import Family, normalise
from tollkeeper.core.solana.paying import TransferTerms, sign_payment
from tollkeeper.core.wallets import parse_address_of, parse_wallet
from tollkeeper.core.x402.version1 import EvmPayload, Payment, encode_payment_header

if TYPE_CHECKING:
    import aiohttp

    from tollkeeper.core.json_types import JsonMapping
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
    payload = payload_for(requirements, authorization, private_key)
    return encode_payment_header(Payment(1, requirements["scheme"], requirements["network"], payload))


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
    payload = solana_payload_for(requirements, terms, seed, blockhash, nonce)
    return encode_payment_header(Payment(1, requirements["scheme"], requirements["network"], payload))


def solana_payload_for(
    requirements: JsonMapping, terms: TransferTerms, seed: bytes, blockhash: str, nonce: bytes
) -> SolanaPayload:
    """The signed transfer; `nonce` makes it another payment than the last one.

    Raises: ValueError for terms that cannot be paid.
    """
    asked = requirements["extra"].get("memo")
    memo = asked.encode() if isinstance(asked, str) and asked else nonce.hex().encode()
    return sign_payment(terms, seed, blockhash, memo)


async def latest_blockhash(session: aiohttp.ClientSession, rpc_url: str) -> str:
    """The blockhash that a Solana payment is to hold, as the node tells it. Raises: RefusedError."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "getLatestBlockhash", "params": [{"commitment": "confirmed"}]}
    answer = await ask(session, "POST", rpc_url, json=request)
    try:
        blockhash = answer["result"]["value"]["blockhash"]
    except (KeyError, TypeError):
        raise RefusedError(f"{rpc_url} is no Solana node: it tells no blockhash") from None
    return str(blockhash)
