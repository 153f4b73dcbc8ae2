"""A buyer's side of a payment on Solana: the transaction that requirements ask for, signed by its payer (spec 2.3).

What official clients send, in their order: compute limit, compute price, TransferChecked, a memo that makes every
payment another one. The fee payer's signature is left zero. A transaction holds for 150 blocks after its blockhash.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from tollkeeper.core.solana import ed25519
from tollkeeper.core.solana.base58 import decode_key, encode_key
from tollkeeper.core.solana.message import NO_SIGNATURE, encode_compact
from tollkeeper.core.solana.programs import (
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    TOKEN_PROGRAM,
    associated_token_account,
)
from tollkeeper.core.x402.version1 import SolanaPayload

COMPUTE_LIMIT: Final = 20_000
COMPUTE_PRICE_MICRO_LAMPORTS: Final = 1
_VERSION_0: Final = b"\x80"
# Two signers, the second of which is only read, and after the token accounts the mint and three programs only read.
_HEADER: Final = bytes([2, 1, 4])
_PAYER, _SOURCE, _DESTINATION, _MINT, _COMPUTE_BUDGET, _TOKEN, _MEMO = range(1, 8)


@dataclass(frozen=True, slots=True)
class TransferTerms:
    """Terms of a payment: recipient, fee payer and mint as base58 addresses, the amount in base units."""

    fee_payer: str
    pay_to: str
    mint: str
    amount: int
    decimals: int


def sign_payment(terms: TransferTerms, seed: bytes, blockhash: str, memo: bytes) -> SolanaPayload:
    """The payment of the wallet whose Ed25519 seed this is. Raises: ValueError, as `_message`."""
    message = _message(terms, ed25519.public_key(seed), blockhash, memo)
    return _payload(message, ed25519.sign(seed, message))


def unsigned_payment(terms: TransferTerms, payer: str, blockhash: str, memo: bytes) -> SolanaPayload:
    """The same for a wallet elsewhere to sign. Raises: ValueError, as `_message`."""
    return _payload(_message(terms, decode_key(payer), blockhash, memo), NO_SIGNATURE)


def _payload(message: bytes, signature: bytes) -> SolanaPayload:
    return SolanaPayload(base64.b64encode(_list((NO_SIGNATURE, signature)) + message).decode())


def _message(terms: TransferTerms, payer: bytes, blockhash: str, memo: bytes) -> bytes:
    """Return the message that its payer signs.

    Raises: ValueError for an address or amount that is none, and where a wallet would pay itself.
    """
    source = associated_token_account(encode_key(payer), terms.mint)
    destination = associated_token_account(terms.pay_to, terms.mint)
    accounts = (
        decode_key(terms.fee_payer),
        payer,
        *(
            decode_key(address)
            for address in (source, destination, terms.mint, COMPUTE_BUDGET_PROGRAM, TOKEN_PROGRAM, MEMO_PROGRAM)
        ),
    )
    if len(set(accounts)) != len(accounts):
        raise ValueError("a wallet cannot pay itself, nor pay the fee of its own payment")
    if not 0 <= terms.amount < 1 << 64:
        raise ValueError("the amount does not fit into a Solana transfer")
    moved = b"\x0c" + terms.amount.to_bytes(8, "little") + bytes([terms.decimals])
    instructions = (
        _instruction(_COMPUTE_BUDGET, b"", b"\x02" + COMPUTE_LIMIT.to_bytes(4, "little")),
        _instruction(_COMPUTE_BUDGET, b"", b"\x03" + COMPUTE_PRICE_MICRO_LAMPORTS.to_bytes(8, "little")),
        _instruction(_TOKEN, bytes([_SOURCE, _MINT, _DESTINATION, _PAYER]), moved),
        _instruction(_MEMO, b"", memo),
    )
    return b"".join(
        (
            _VERSION_0,
            _HEADER,
            _list(accounts),
            decode_key(blockhash),
            _list(instructions),
            encode_compact(0),  # no lookup tables
        )
    )


def _instruction(program: int, accounts: bytes, data: bytes) -> bytes:
    return bytes([program]) + encode_compact(len(accounts)) + accounts + encode_compact(len(data)) + data


def _list(parts: tuple[bytes, ...]) -> bytes:
    return encode_compact(len(parts)) + b"".join(parts)
