"""One Solana network behind its nodes (specification 2.3, 2.4, 4.4).

Read `chain` first: open it, read the facts of a payment, simulate, send, wait, prove expiry; its names are this
package's. `uses` says which transaction carried a payment out, `payments` which payments a range of slots holds.
Whether a payment is good is decided in `core.solana`.
"""

from __future__ import annotations

from tollkeeper.chains.solana.chain import (
    BLOCKHASH_LIFETIME_BLOCKS,
    LAG_BLOCKS,
    LAMPORTS_PER_SIGNATURE,
    STATUSES_MAX,
    Lifetime,
    Simulation,
    SolanaChain,
    SolanaConfig,
)

__all__ = [
    "BLOCKHASH_LIFETIME_BLOCKS",
    "LAG_BLOCKS",
    "LAMPORTS_PER_SIGNATURE",
    "STATUSES_MAX",
    "Lifetime",
    "Simulation",
    "SolanaChain",
    "SolanaConfig",
]
