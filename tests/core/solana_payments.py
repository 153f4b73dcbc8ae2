"""Signed Solana payments for tests: known keys, one canonical transaction, and variations of it, built by solders.

Not a fixture: every function takes what it depends on and returns a value.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.programs import (
    COMPUTE_BUDGET_PROGRAM,
    LIGHTHOUSE_PROGRAM,
    MEMO_PROGRAM,
    TOKEN_PROGRAM,
    associated_token_account,
)
from tollkeeper.core.solana.rules import FeePolicy, SolanaAsset
from tollkeeper.core.x402.version1 import Payment, Requirements, SolanaPayload

if TYPE_CHECKING:
    from collections.abc import Sequence

_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
FEE_PAYER_SEED: Final = b"\x21" * 32
PAYER_SEED: Final = b"\x22" * 32
OTHER_SEED: Final = b"\x23" * 32
FEE_PAYER: Final = Keypair.from_seed(FEE_PAYER_SEED)
PAYER: Final = Keypair.from_seed(PAYER_SEED)
OTHER: Final = Keypair.from_seed(OTHER_SEED)
PAY_TO: Final = str(Keypair.from_seed(b"\x24" * 32).pubkey())
DEVNET: Final = SolanaAsset(NETWORKS["solana-devnet"], NETWORKS["solana-devnet"].usdc.address)
POLICY: Final = FeePolicy((str(FEE_PAYER.pubkey()),))
BLOCKHASH: Final = bytes(range(32))
AMOUNT: Final = 10_000
REQUIREMENTS: Final = Requirements(
    scheme="exact",
    network="solana-devnet",
    amount=AMOUNT,
    asset=DEVNET.address,
    pay_to=PAY_TO,
    resource="https://gateway.example/abc",
    extra={"feePayer": str(FEE_PAYER.pubkey())},
)


def key(text: str) -> Pubkey:
    """The key that `text` writes."""
    return Pubkey.from_string(text)


def account_of(owner: str | Pubkey, mint: str = DEVNET.address, token_program: str = TOKEN_PROGRAM) -> Pubkey:
    """The associated token account."""
    return key(associated_token_account(str(owner), mint, token_program))


def instruction(program: str, data: bytes, accounts: Sequence[AccountMeta] = ()) -> Instruction:
    """An instruction of any program."""
    return Instruction(key(program), data, list(accounts))


def writable(address: Pubkey) -> AccountMeta:
    """An account that is written and does not sign."""
    return AccountMeta(address, is_signer=False, is_writable=True)


def readable(address: Pubkey) -> AccountMeta:
    """An account that is read and does not sign."""
    return AccountMeta(address, is_signer=False, is_writable=False)


def signer(address: Pubkey) -> AccountMeta:
    """An account that signs and is not written."""
    return AccountMeta(address, is_signer=True, is_writable=False)


def compute_limit(units: int = 20_000) -> Instruction:
    """SetComputeUnitLimit."""
    return instruction(COMPUTE_BUDGET_PROGRAM, b"\x02" + units.to_bytes(4, "little"))


def compute_price(micro_lamports: int = 1) -> Instruction:
    """SetComputeUnitPrice."""
    return instruction(COMPUTE_BUDGET_PROGRAM, b"\x03" + micro_lamports.to_bytes(8, "little"))


def memo(text: bytes = b"one memo") -> Instruction:
    """A memo."""
    return instruction(MEMO_PROGRAM, text)


def lighthouse(account: Pubkey | None = None) -> Instruction:
    """A wallet's assertion; its content does not matter here."""
    return instruction(LIGHTHOUSE_PROGRAM, b"\x06\x00\x01", [readable(account or PAYER.pubkey())])


def transfer(
    amount: int = AMOUNT,
    *,
    pay_to: str = PAY_TO,
    decimals: int = 6,
    mint: str = DEVNET.address,
    payer: Pubkey | None = None,
    source: Pubkey | None = None,
    destination: Pubkey | None = None,
    program: str = TOKEN_PROGRAM,
) -> Instruction:
    """TransferChecked."""
    owner = payer or PAYER.pubkey()
    accounts = [
        writable(source or account_of(owner, mint, program)),
        readable(key(mint)),
        writable(destination or account_of(pay_to, mint, program)),
        signer(owner),
    ]
    return instruction(program, b"\x0c" + amount.to_bytes(8, "little") + bytes([decimals]), accounts)


@dataclass(frozen=True)
class Draft:
    """A transaction to be: who pays its fee, who signs it, what it does."""

    instructions: tuple[Instruction, ...] = ()
    fee_payer: Pubkey = field(default_factory=FEE_PAYER.pubkey)
    signers: tuple[Keypair, ...] = (PAYER,)
    blockhash: bytes = BLOCKHASH
    is_legacy: bool = False

    def transaction(self) -> VersionedTransaction:
        """Compiled, with the signatures of `signers`; all others are zero."""
        used = list(self.instructions or usual())
        blockhash = Hash.from_bytes(self.blockhash)
        message: Message | MessageV0
        if self.is_legacy:
            message = Message.new_with_blockhash(used, self.fee_payer, blockhash)
            signed = bytes(message)
        else:
            message = MessageV0.try_compile(self.fee_payer, used, [], blockhash)
            signed = b"\x80" + bytes(message)
        wanted = message.account_keys[: message.header.num_required_signatures]
        known = {one.pubkey(): one for one in self.signers}
        signatures = [known[name].sign_message(signed) if name in known else Signature.default() for name in wanted]
        return VersionedTransaction.populate(message, signatures)

    def payload(self) -> SolanaPayload:
        """As a client sends it."""
        return SolanaPayload(base64.b64encode(bytes(self.transaction())).decode())


def signed_again(payload: SolanaPayload, seed: bytes = PAYER_SEED) -> SolanaPayload:
    """The same message with another signature of its payer, as valid as the first (of another nonce)."""
    raw = base64.b64decode(payload.transaction)
    count = raw[0]
    message, again = raw[1 + 64 * count :], bytes(Keypair.from_seed(b"\x77" * 32).pubkey())
    nonce, secret = (_scalar(one) for one in (b"\x77" * 32, seed))
    public = bytes(Keypair.from_seed(seed).pubkey())
    challenge = int.from_bytes(hashlib.sha512(again + public + message).digest(), "little")
    signature = again + ((nonce + challenge * secret) % _ORDER).to_bytes(32, "little")
    return encoded(raw[:65] + signature + raw[129:])


def _scalar(seed: bytes) -> int:
    """RFC 8032, 5.1.5."""
    low = bytearray(hashlib.sha512(seed).digest()[:32])
    low[0] &= 248
    low[31] = low[31] & 127 | 64
    return int.from_bytes(low, "little")


def usual(*more: Instruction, amount: int = AMOUNT) -> tuple[Instruction, ...]:
    """The three instructions of every client, and what follows them."""
    return compute_limit(), compute_price(), transfer(amount), *more


def payment(payload: SolanaPayload, network: str = "solana-devnet") -> Payment:
    """A version 1 payment."""
    return Payment(1, "exact", network, payload)


def encoded(raw: bytes) -> SolanaPayload:
    """These bytes as a payload."""
    return SolanaPayload(base64.b64encode(raw).decode())
