"""One Solana network behind its nodes (specification 2.3, 2.4, 4.4).

Read `chain` first: open it, read the facts of a payment, simulate, send, wait. `expiry_proof` proves that a transaction
can be executed no longer; the names of both are this package's. `blockhashes` says how long one is taken still,
`payment_lookup` which transaction carried a payment out, `payments` which payments a range of slots holds, `history`
whether a node lacks blocks, `answers` reads what nodes say. Whether a payment is good is decided in `core.solana`.
"""

from __future__ import annotations

from tollkeeper.chains.solana.chain import (
    BLOCKHASH_UNKNOWN,
    LAMPORTS_PER_SIGNATURE,
    RENT_EXEMPT_LAMPORTS,
    STATUSES_MAX,
    Simulation,
    SolanaChain,
    SolanaConfig,
    fee_lamports,
)
from tollkeeper.chains.solana.expiry_proof import (
    BLOCKHASH_LIFETIME_BLOCKS,
    LAG_BLOCKS,
    Lifetime,
    has_expired,
)

__all__ = [
    "BLOCKHASH_LIFETIME_BLOCKS",
    "BLOCKHASH_UNKNOWN",
    "LAG_BLOCKS",
    "LAMPORTS_PER_SIGNATURE",
    "RENT_EXEMPT_LAMPORTS",
    "STATUSES_MAX",
    "Lifetime",
    "Simulation",
    "SolanaChain",
    "SolanaConfig",
    "fee_lamports",
    "has_expired",
]
