"""Payments on a running embedded Solana chain, for tests: drafts whose blockhash is recent there."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from solders.hash import Hash
from solders.keypair import Keypair

from tests.core.solana_payments import Draft, compute_limit, compute_price, memo, transfer
from tollkeeper.sandbox.wallets import derive_solana_wallets

if TYPE_CHECKING:
    from solders.instruction import Instruction

    from tollkeeper.sandbox.solana.node import SolanaNode

WALLETS: Final = derive_solana_wallets()
FEE_PAYER: Final = Keypair.from_seed(WALLETS.fee_payers[0].seed)
SECOND_FEE_PAYER: Final = Keypair.from_seed(WALLETS.fee_payers[1].seed)
BUYER: Final = Keypair.from_seed(WALLETS.buyer.seed)
SECOND_BUYER: Final = Keypair.from_seed(WALLETS.second_buyer.seed)
_MEMOS: Final = itertools.count()


def drafted(node: SolanaNode, *instructions: Instruction, buyer: Keypair = BUYER) -> Draft:
    """These instructions, to be paid for by our first fee payer and signed by the buyer."""
    blockhash = bytes(Hash.from_string(node.chain.blockhash))
    return Draft(instructions, FEE_PAYER.pubkey(), (buyer,), blockhash)


def paying(node: SolanaNode, amount: int, *, pay_to: str = WALLETS.owner.address, buyer: Keypair = BUYER) -> Draft:
    """A payment as today's clients make it, unlike every other by its memo."""
    moved = transfer(amount, payer=buyer.pubkey(), pay_to=pay_to)
    return drafted(node, compute_limit(), compute_price(), moved, memo(f"payment {next(_MEMOS)}".encode()), buyer=buyer)


def paid_for_by(draft: Draft, fee_payer: Keypair) -> Draft:
    """The same, with another fee payer."""
    return replace(draft, fee_payer=fee_payer.pubkey())
