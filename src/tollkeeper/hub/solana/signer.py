"""The hub's own accounts on Solana, which pay the fees, and what they sign (contract 5.1, 5.2; security A-26 to A-32).

A key lives in one object that shows only its address and adds its signature only to a transaction that keeps every
rule of `core.solana`, whoever asks. Which fee payer is advertised changes seldom, and what was advertised holds while
its 402s are outstanding: a transaction may name any of them, whichever is advertised when it is settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from tollkeeper.core.limits import CHALLENGE_TIMEOUT_SECONDS
from tollkeeper.core.solana import ed25519
from tollkeeper.core.solana.base58 import decode_key, encode, encode_key
from tollkeeper.core.solana.rules import read_transfer, transaction_checks
from tollkeeper.core.x402.verification import refusal
from tollkeeper.hub.signer_pool import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tollkeeper.core.solana.rules import FeePolicy, SolanaAsset
    from tollkeeper.core.x402.version1 import SolanaPayload

# Servers that copy `/supported` into their 402s may keep it for some minutes, and a 402 is good for one.
ADVERTISED_SECONDS: Final = 60 * CHALLENGE_TIMEOUT_SECONDS


class FeePayer:
    """One account of the hub's. `address` is base58; the key cannot be read back, printed or pickled."""

    __slots__ = ("_sign", "address")

    def __init__(self, seed: bytes) -> None:
        """Take 32 bytes. Raises: ValueError, which does not show them, where they are not so many."""
        if len(seed) != ed25519.SEED_SIZE_BYTES:
            raise ValueError("a Solana key follows from 32 bytes")
        self.address = encode_key(ed25519.public_key(seed))
        self._sign: Callable[[bytes], bytes] = ed25519.signer(seed)

    def co_sign(self, payload: SolanaPayload, asset: SolanaAsset, policy: FeePolicy) -> tuple[bytes, str]:
        """Return the transaction with our signature, ready to be sent, and the signature by which the chain names it.

        Raises: PolicyError for a transaction that breaks any rule, or whose fee another account pays.
        """
        for check in transaction_checks(payload, asset, policy):
            if not check.ok:
                raise PolicyError(f"the fee payer does not sign this transaction: {check.name}") from refusal(check)
        transaction = read_transfer(payload).transaction
        if transaction.message.accounts[0] != decode_key(self.address):
            raise PolicyError("another account pays for this transaction")
        signature = self._sign(transaction.message.raw)
        return transaction.with_signature(0, signature).encode(), encode(signature)

    def __repr__(self) -> str:
        return f"FeePayer({self.address})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a fee payer cannot be copied out of its process")


def advertised(addresses: Sequence[str], now_seconds: int, with_money: Collection[str]) -> str:
    """Name the fee payer for `/supported`: the same one for an hour, each in turn, and one `with_money` if there is.

    The hour is the clock's, so that every process of a hub names the same, also after a restart.
    """
    turn = now_seconds // ADVERTISED_SECONDS % len(addresses)
    in_turn = [*addresses[turn:], *addresses[:turn]]
    return next((address for address in in_turn if address in with_money), in_turn[0])
