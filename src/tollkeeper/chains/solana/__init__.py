"""One Solana network behind its nodes (specification 2.3, 2.4, 4.4).

Read `chain` first: open it, read the facts of a payment, simulate, send, wait. `lifetimes` proves that a transaction
can be executed no longer; the names of both are this package's. `blockhashes` says how long one is taken still, `uses`
which transaction carried a payment out, `payments` which payments a range of slots holds, `history` whether a node
lacks blocks, `answers` reads what nodes say.
Whether a payment is good is decided in `core.solana`.
"""

from __future__ import annotations

from tollkeeper.chains.solana.chain import (
    LAMPORTS_PER_SIGNATURE,
    RENT_EXEMPT_LAMPORTS,
    STATUSES_MAX,
    Simulation,
    SolanaChain,
    SolanaConfig,
    fee_lamports,
)
from tollkeeper.chains.solana.lifetimes import (
    BLOCKHASH_LIFETIME_BLOCKS,
    LAG_BLOCKS,
    SLOTS_PER_SECOND_MAX,
    Lifetime,
    blocks_behind,
    has_all,
    has_ended,
    has_expired,
    known_end,
)

__all__ = [
    "BLOCKHASH_LIFETIME_BLOCKS",
    "LAG_BLOCKS",
    "LAMPORTS_PER_SIGNATURE",
    "RENT_EXEMPT_LAMPORTS",
    "SLOTS_PER_SECOND_MAX",
    "STATUSES_MAX",
    "Lifetime",
    "Simulation",
    "SolanaChain",
    "SolanaConfig",
    "blocks_behind",
    "fee_lamports",
    "has_all",
    "has_ended",
    "has_expired",
    "known_end",
]
