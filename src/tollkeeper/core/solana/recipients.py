"""Is an address to be paid on a wallet's, and who gets what is paid there? (contract 3.1, security A-32).

A payment goes to the token account that belongs to the address, so a token account named in a wallet's place is never
paid: what would be paid is a token account of its own, which it has not. Whoever takes such an address for a wallet
tells its owner to open one. And an account's address stays when its owner signs it away, with all that is paid there
from then on. How a node is asked is in `chains.solana`, what an owner is told in the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tollkeeper.core.solana.base58 import decode_key
from tollkeeper.core.solana.ed25519 import is_on_curve
from tollkeeper.core.solana.programs import (
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    read_mint,
    read_token_account,
)

# Whose keys sign for it stands in the account itself; of Token-2022 no other account has this size.
MULTISIG_SIZE_BYTES: Final = 355


@dataclass(frozen=True, slots=True)
class Account:
    """Account at an address: the program that it belongs to, and its bytes."""

    program: str
    is_executable: bool
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoWallet:
    """Why an address is no wallet's. `is_never_paid`: nobody should ever name it, whatever its owner does."""

    why: str
    is_never_paid: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of the money that is paid to a token account: `wallet`, None where nobody can be paid.

    `is_its_own`: the wallet is the one that the account was made for, as the account's address says. `spender`: the
    address that the wallet lets spend from the account; it may be anybody that the wallet trusts.
    """

    wallet: str | None
    is_its_own: bool
    spender: str | None = None

    @property
    def why_not(self) -> str:
        """Why its own wallet is not paid there; empty where it is."""
        if self.is_its_own:
            return ""
        return "it cannot be paid" if self.wallet is None else f"it was signed away to {self.wallet}"


def no_wallet(address: str, account: Account | None = None) -> NoWallet | None:
    """Why the address is no wallet's; None where it is one's, or may be. `account`: what a node shows there, if any.

    A program may hold money in an address that it derived, as wallets of several signers do: that one can be paid.
    """
    if account is not None and (never := _never_paid(account)):
        return NoWallet(never, is_never_paid=True)
    if not is_on_curve(decode_key(address)):
        why = "it lies off the curve, so no key signs for it, and only the program that derived it can spend from there"
        return NoWallet(why, is_never_paid=False)
    if account is not None and account.program != SYSTEM_PROGRAM:
        return NoWallet(f"it is an account of the program {account.program}", is_never_paid=False)
    return None


def _never_paid(account: Account) -> str:
    if account.is_executable:
        return "it is a program"
    if account.program not in {TOKEN_PROGRAM, TOKEN_2022_PROGRAM} or len(account.data) == MULTISIG_SIZE_BYTES:
        return ""
    if (mint := read_mint(account.data)) is not None:
        return "it is a token's mint" if mint.is_initialized else ""
    held = read_token_account(account.data)
    return "" if held is None else f"it is a token account; name the wallet that it belongs to, {held.owner}"
