"""Signed Solana payments that differ in their memo, and the requests that verify or settle them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana import ed25519
from tollkeeper.core.solana.base58 import decode_key
from tollkeeper.core.solana.message import NO_SIGNATURE, encode_compact
from tollkeeper.core.solana.programs import (
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    TOKEN_PROGRAM,
    associated_token_account,
)
from tollkeeper.sandbox.wallets import derive_solana_wallets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.sandbox.wallets import SolanaWallets

NETWORK: Final = NETWORKS["solana-devnet"]
PRICE_MICRO: Final = 100
_LIMIT: Final = b"\x02" + (20_000).to_bytes(4, "little")
_PRICE: Final = b"\x03" + (1).to_bytes(8, "little")
_TRANSFER: Final = b"\x0c" + PRICE_MICRO.to_bytes(8, "little") + bytes([NETWORK.usdc.decimals])


@dataclass(frozen=True, slots=True)
class Signed:
    """One payment: what was signed by whom, and the JSON body that carries it."""

    key: bytes
    message: bytes
    signature: bytes
    body: bytes


def signed_payments(count: int, blockhash: bytes, first: int = 0, fee_payer: str = "", **options: bool) -> list[Signed]:
    """Distinct payments of the sandbox's buyer to its owner, their memos numbered from `first`, as clients make them.

    The hub's first fee payer pays unless another one is named. `options` are further members of each body.
    """
    wallets = derive_solana_wallets()
    named = fee_payer or wallets.fee_payers[0].address
    return [_signed(wallets, named, blockhash, b"%032x" % number, options) for number in range(first, first + count)]


def _signed(wallets: SolanaWallets, fee_payer: str, blockhash: bytes, memo: bytes, options: dict[str, bool]) -> Signed:
    buyer, owner, mint = wallets.buyer, wallets.owner.address, NETWORK.usdc.address
    accounts = [
        decode_key(address)
        for address in (
            fee_payer,
            buyer.address,
            associated_token_account(buyer.address, mint),
            associated_token_account(owner, mint),
            COMPUTE_BUDGET_PROGRAM,
            TOKEN_PROGRAM,
            mint,
            MEMO_PROGRAM,
        )
    ]
    instructions = ((4, b"", _LIMIT), (4, b"", _PRICE), (5, b"\x02\x06\x03\x01", _TRANSFER), (7, b"", memo))
    header = b"\x80\x02\x01\x04" + encode_compact(len(accounts))
    message = header + b"".join(accounts) + blockhash + encode_compact(len(instructions))
    message += b"".join(_encoded(instructions)) + b"\x00"
    signature = ed25519.sign(buyer.seed, message)
    raw = b"\x02" + NO_SIGNATURE + signature + message
    body: dict[str, Any] = {
        "x402Version": 1,
        "paymentPayload": {
            "x402Version": 1,
            "scheme": "exact",
            "network": NETWORK.v1_name,
            "payload": {"transaction": base64.b64encode(raw).decode()},
        },
        "paymentRequirements": {
            "scheme": "exact",
            "network": NETWORK.v1_name,
            "maxAmountRequired": str(PRICE_MICRO),
            "resource": "https://gateway.example/weather",
            "description": "A made-up forecast for a city",
            "mimeType": "application/json",
            "payTo": owner,
            "maxTimeoutSeconds": 60,
            "asset": mint,
            "extra": {"feePayer": fee_payer},
        },
        **options,
    }
    return Signed(decode_key(buyer.address), message, signature, json.dumps(body, separators=(",", ":")).encode())


def _encoded(instructions: tuple[tuple[int, bytes, bytes], ...]) -> Iterator[bytes]:
    for program, accounts, data in instructions:
        yield bytes([program]) + encode_compact(len(accounts)) + accounts + encode_compact(len(data)) + data
