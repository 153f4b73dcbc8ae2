"""Solana's programs as far as a payment uses them: addresses, derived accounts, instructions (specification 2.3).

Reading is exact: an instruction with a byte or an account more than its form has is another instruction. Whether a
payment may hold it is decided in `core.solana`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.solana.base58 import decode_key, encode_key
from tollkeeper.core.solana.ed25519 import is_on_curve

if TYPE_CHECKING:
    from tollkeeper.core.solana.message import Instruction

TOKEN_PROGRAM: Final = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"  # noqa: S105 - an address
TOKEN_2022_PROGRAM: Final = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"  # noqa: S105 - an address
ASSOCIATED_TOKEN_PROGRAM: Final = "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL"  # noqa: S105 - an address
COMPUTE_BUDGET_PROGRAM: Final = "ComputeBudget111111111111111111111111111111"
MEMO_PROGRAM: Final = "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"
LIGHTHOUSE_PROGRAM: Final = "L2TExMFKdjpN9kozasaurPirfHy9P8sbXoAN1qA3S95"
SYSTEM_PROGRAM: Final = "11111111111111111111111111111111"
# Where a cluster lists the newest blockhashes, the newest first.
RECENT_BLOCKHASHES_SYSVAR: Final = "SysvarRecentB1ockHashes11111111111111111111"
INCINERATOR: Final = "1nc1nerator11111111111111111111111111111111"  # what is sent there is burnt
# Addresses that everybody knows, and that nobody has the key of.
NOBODYS: Final = frozenset(
    (
        *(TOKEN_PROGRAM, TOKEN_2022_PROGRAM, ASSOCIATED_TOKEN_PROGRAM, COMPUTE_BUDGET_PROGRAM, MEMO_PROGRAM),
        *(LIGHTHOUSE_PROGRAM, SYSTEM_PROGRAM, INCINERATOR),
    )
)
_DERIVED: Final = b"ProgramDerivedAddress"
_SET_COMPUTE_UNIT_LIMIT: Final = 2
_SET_COMPUTE_UNIT_PRICE: Final = 3
_TRANSFER_CHECKED: Final = 12
_TOKEN_ACCOUNT_SIZE_BYTES: Final = 165
_MINT_SIZE_BYTES: Final = 82
# Of Token-2022: behind the fields of a mint, filled up to a token account's size, come this mark and the extensions.
_IS_MINT: Final = 1
_EXTENSION_HEAD_BYTES: Final = 4
# Who may close an empty mint, and where a name, a group and their pointers are kept: nothing that touches a transfer.
HARMLESS_EXTENSIONS: Final = frozenset({3, 18, 19, 20, 21, 22, 23})
_ACCOUNT_INITIALIZED: Final = 1
_IS_SOMETHING: Final = b"\x01\0\0\0"  # before what an account need not have
_BLOCKHASH_ENTRY_BYTES: Final = 40  # the hash, and what a signature cost
_BLOCKHASHES_LISTED_MAX: Final = 150


def find_program_address(seeds: tuple[bytes, ...], program: str) -> tuple[str, int]:
    """The account that `program` derives from `seeds`, and its bump. Raises: ValueError where there is none."""
    seed, tail = b"".join(seeds), decode_key(program) + _DERIVED
    for bump in range(255, -1, -1):
        candidate = hashlib.sha256(seed + bytes([bump]) + tail).digest()
        if not is_on_curve(candidate):
            return encode_key(candidate), bump
    msg = "no address can be derived from these seeds"  # pragma: no cover - one in 2 to the 256
    raise ValueError(msg)  # pragma: no cover


@lru_cache(maxsize=4096)
def associated_token_account(owner: str, mint: str, token_program: str = TOKEN_PROGRAM) -> str:
    """The token account of `owner` for `mint` that everybody can compute. Raises: ValueError for what is no address."""
    seeds = (decode_key(owner), decode_key(token_program), decode_key(mint))
    return find_program_address(seeds, ASSOCIATED_TOKEN_PROGRAM)[0]


def read_compute_unit_limit(instruction: Instruction) -> int | None:
    """Compute units, where this is the data of SetComputeUnitLimit."""
    data = instruction.data
    if len(data) != 5 or data[0] != _SET_COMPUTE_UNIT_LIMIT or instruction.accounts:
        return None
    return int.from_bytes(data[1:], "little")


def read_compute_unit_price(instruction: Instruction) -> int | None:
    """Micro-lamports per compute unit, where this is the data of SetComputeUnitPrice."""
    data = instruction.data
    if len(data) != 9 or data[0] != _SET_COMPUTE_UNIT_PRICE or instruction.accounts:
        return None
    return int.from_bytes(data[1:], "little")


class TransferChecked(msgspec.Struct, frozen=True, gc=False):
    """A token transfer. The accounts are positions in the message; the amount is in base units."""

    source: int
    mint: int
    destination: int
    authority: int
    amount: int
    decimals: int


def read_transfer_checked(instruction: Instruction) -> TransferChecked | None:
    """The transfer, where this is the data and accounts of TransferChecked with a single signer."""
    data = instruction.data
    if len(data) != 10 or data[0] != _TRANSFER_CHECKED or len(instruction.accounts) != 4:
        return None
    source, mint, destination, authority = instruction.accounts
    return TransferChecked(source, mint, destination, authority, int.from_bytes(data[1:9], "little"), data[9])


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """State of a token account; addresses in base58, the amount in base units.

    `spender`: the address that its owner lets spend from it. `allowance`: how much; the account need not hold that
    much.
    """

    mint: str
    owner: str
    amount: int
    is_usable: bool  # initialised and not frozen
    spender: str | None = None
    allowance: int = 0

    def money_of(self, wallet: str) -> int:
        """Return how much this wallet can pay from the account."""
        if wallet == self.owner:
            return self.amount
        return min(self.amount, self.allowance) if wallet == self.spender else 0


def read_token_account(data: bytes) -> TokenAccount | None:
    """The account in these bytes; None where they are none. Extensions of Token-2022 may follow."""
    if len(data) < _TOKEN_ACCOUNT_SIZE_BYTES:
        return None
    allowance = int.from_bytes(data[121:129], "little") if data[72:76] == _IS_SOMETHING else 0  # what is left of it
    return TokenAccount(
        mint=encode_key(data[:32]),
        owner=encode_key(data[32:64]),
        amount=int.from_bytes(data[64:72], "little"),
        is_usable=data[108] == _ACCOUNT_INITIALIZED,
        spender=encode_key(data[76:108]) if allowance else None,
        allowance=allowance,
    )


@dataclass(frozen=True, slots=True)
class TokenMint:
    """State of a token's mint. `extensions`: the numbers that Token-2022 has for the extensions of this mint."""

    decimals: int
    is_initialized: bool
    extensions: frozenset[int]


def read_mint(data: bytes) -> TokenMint | None:
    """The mint in these bytes, of either token program; None where they are none."""
    extensions: set[int] = set()
    if len(data) != _MINT_SIZE_BYTES:
        if len(data) <= _TOKEN_ACCOUNT_SIZE_BYTES or data[_TOKEN_ACCOUNT_SIZE_BYTES] != _IS_MINT:
            return None
        at = _TOKEN_ACCOUNT_SIZE_BYTES + 1
        while at + _EXTENSION_HEAD_BYTES <= len(data):
            kind, size = (int.from_bytes(data[place : place + 2], "little") for place in (at, at + 2))
            if kind == 0:  # the rest is not used yet
                break
            extensions.add(kind)
            at += _EXTENSION_HEAD_BYTES + size
    return TokenMint(decimals=data[44], is_initialized=data[45] == 1, extensions=frozenset(extensions))


def read_recent_blockhashes(data: bytes) -> list[bytes] | None:
    """The blockhashes that the sysvar lists, the newest first; None for what is no such list."""
    count = int.from_bytes(data[:8], "little")
    if not 0 < count <= _BLOCKHASHES_LISTED_MAX or len(data) < 8 + count * _BLOCKHASH_ENTRY_BYTES:
        return None
    return [data[at : at + 32] for at in range(8, 8 + count * _BLOCKHASH_ENTRY_BYTES, _BLOCKHASH_ENTRY_BYTES)]


# Is an address to be paid on a wallet's, and who gets what is paid there? (contract 3.1, security A-32). A payment goes
# to the token account that belongs to the address, so a token account named in a wallet's place is never paid: what
# would be paid is a token account of its own, which it has not. Whoever takes such an address for a wallet tells its
# owner to open one. And an account's address stays when its owner signs it away, with all that is paid there from then
# on. How a node is asked is in `chains.solana`, what an owner is told in the gateway.

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
