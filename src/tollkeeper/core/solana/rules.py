"""The payment rules on Solana, in order: what a transaction must be before our fee payer signs it (A-27 to A-32).

Whoever co-signs pays the fee and lends a signature, so everything that is not named here is refused: a compute limit
and price under their caps, one TransferChecked, then only memos and Lighthouse assertions; our fee payer in no
instruction; no signer but payer and fee payer. The amount is exact. What only the chain knows is judged from facts
that were read there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.json_types import JsonMapping
from tollkeeper.core.solana import ed25519
from tollkeeper.core.solana.base58 import decode_key, encode_key, parse_key
from tollkeeper.core.solana.message import (
    NO_SIGNATURE,
    Instruction,
    MalformedTransaction,
    Message,
    SolanaTransaction,
    decode_transaction,
)
from tollkeeper.core.solana.programs import (
    COMPUTE_BUDGET_PROGRAM,
    LIGHTHOUSE_PROGRAM,
    MEMO_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    Holder,
    TokenAccount,
    TransferChecked,
    associated_token_account,
    no_wallet,
    read_compute_unit_limit,
    read_compute_unit_price,
    read_transfer_checked,
)
from tollkeeper.core.x402.verification import Check, Reason
from tollkeeper.core.x402.version1 import PaymentKey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tollkeeper.core.networks import Network
    from tollkeeper.core.x402.version1 import Requirements, SolanaPayload

INSTRUCTIONS_MIN: Final = 3
INSTRUCTIONS_MAX: Final = 7
# So many blocks (about 8 s) a blockhash must be taken still, to be worth a signature: nodes are a little behind, and a
# leader may be busy. Clients begin with 118 or more.
BLOCKS_LEFT_MIN: Final = 20
ALREADY_PROCESSED: Final = "AlreadyProcessed"  # a node's word for a message that it has executed
# What it says where the fee payer has nothing, or not enough, to pay with: that is ours to mend, not the buyer's.
# An account keeps what exempts it from rent; the fee payer is the first one of its transaction.
FEE_PAYER_WITHOUT_MONEY: Final = frozenset(
    {"AccountNotFound", "InsufficientFundsForFee", '{"InsufficientFundsForRent":{"account_index":0}}'}
)
_COMPUTE_BUDGET: Final = decode_key(COMPUTE_BUDGET_PROGRAM)
_SIGNERS: Final = 2  # the fee payer and the payer
# What a check expects, as a text: said for each payment, so not made for each.
_LONG_ENOUGH: Final = f"a blockhash that is taken for {BLOCKS_LEFT_MIN} more blocks"
_ANOTHER: Final = "another account than the source"
_COUNTS: Final = f"{INSTRUCTIONS_MIN} to {INSTRUCTIONS_MAX}"
_TRANSFER: Final = {program: f"TransferChecked of {program}" for program in (TOKEN_PROGRAM, TOKEN_2022_PROGRAM)}
_AFTER_TRANSFER: Final = frozenset(map(decode_key, (MEMO_PROGRAM, LIGHTHOUSE_PROGRAM)))


@dataclass(frozen=True, slots=True)
class SolanaAsset:
    """An allowed mint on an enabled network, of the token program that it belongs to."""

    network: Network
    address: str
    token_program: str = TOKEN_PROGRAM
    fee_payer: str = ""  # whom a facilitator says that its buyers must name; empty at the facilitator itself

    has_accounts: ClassVar[bool] = True  # what a wallet holds lies in a token account

    @classmethod
    def of_kind(cls, network: Network, shown: JsonMapping, extra: JsonMapping) -> SolanaAsset | None:
        """Read the asset that a facilitator's kind says it settles; None if that cannot be read.

        A kind must name the fee payer: nobody can pay without knowing it.
        """
        program = shown.get("tokenProgram", TOKEN_PROGRAM)
        if program not in {TOKEN_PROGRAM, TOKEN_2022_PROGRAM}:
            return None
        mint, fee_payer = shown.get("address", network.usdc.address), extra.get("feePayer")
        try:
            return cls(network, parse_key(mint), parse_key(program), parse_key(fee_payer))
        except ApiError:
            return None

    @property
    def fee_payers(self) -> frozenset[str]:
        """Whom a buyer may name."""
        return frozenset({self.fee_payer})

    @property
    def shown(self) -> dict[str, str]:
        """Members of a facilitator's kind that describe the token, as `of_kind` reads them."""
        return {"address": self.address, "tokenProgram": self.token_program}

    @property
    def extra(self) -> dict[str, str]:
        """Facts that a client needs to sign: the fee payer."""
        return {"feePayer": self.fee_payer}

    def known_as(self, own: object) -> SolanaAsset:  # noqa: ARG002 - a mint has no name to sign with
        """The same mint by what a node of ours says of it: who pays the fee only the facilitator knows."""
        return self

    def charged_to(self, fee_payer: str) -> SolanaAsset:
        """The same mint for a payment whose fee this account pays."""
        return replace(self, fee_payer=fee_payer)

    def account_of(self, wallet: str) -> str:
        """Return the account that a transfer to the wallet names: its associated token account."""
        return associated_token_account(wallet, self.address, self.token_program)

    def holder(self, account: str, found: TokenAccount | None) -> Holder:
        """Return the holder of what is paid to this account.

        `found`: the token account that a node found at its address.

        The holder is nobody if there is no such account of the asset's token program, or if it is one of another token,
        or frozen.
        """
        is_there = found is not None and found.is_usable and found.mint == self.address
        if found is None or not is_there:
            return Holder(None, is_its_own=False)
        return self.held_by(account, found.owner, found.spender)

    def held_by(self, account: str, wallet: str, spender: str | None = None) -> Holder:
        """The same of an account of which it is known whose it is."""
        return Holder(wallet, self.account_of(wallet) == account, spender)

    def no_wallet(self, address: str) -> str:
        """Why nobody's key can spend what is paid to this address, as far as it shows; empty where it does not."""
        found = no_wallet(address)
        return "" if found is None else found.why

    def recipient_check(self, account: str, pay_to: str) -> Check:
        """Is it this wallet's token account that is paid?"""
        wanted = self.account_of(pay_to)
        return Check("recipient", account == wanted, Reason.SVM_RECIPIENT, wanted, account)

    def price_check(self, value: int, price: int) -> Check:
        """Is exactly this price paid? Neither more nor less is taken on Solana."""
        reason = Reason.SVM_AMOUNT_LOW if value < price else Reason.SVM_AMOUNT
        return Check("value", value == price, reason, str(price), str(value))

    exact_check = price_check

    def stated_check(self, value: int, stated: int) -> Check:
        """Is it what was said beside the signed payment?"""
        return self.price_check(value, stated)


@dataclass(frozen=True, slots=True)
class FeePolicy:
    """Accounts of ours that may pay a fee, and bounds of the fee that a buyer may choose.

    The price is in micro-lamports per compute unit; both caps together bound the priority fee of one transaction.
    """

    fee_payers: tuple[str, ...]
    compute_limit_max: int = 400_000
    compute_price_max_micro_lamports: int = 100_000


class SolanaTransfer(msgspec.Struct, frozen=True, gc=False):
    """Transfer in a transaction that kept every rule. Addresses in base58, the value in base units."""

    payload: SolanaPayload
    transaction: SolanaTransaction
    fee_payer: str
    payer: str
    source: str
    destination: str
    value: int


def payment_key(asset: SolanaAsset, transfer: SolanaTransfer) -> PaymentKey:
    """The canonical identity: the hash of the message, of which a payer can make several valid signatures."""
    return PaymentKey(asset.network.name, asset.address, transfer.payer, transfer.transaction.message.hash)


def read_transfer(payload: SolanaPayload) -> SolanaTransfer:
    """The transfer in a payload that `transaction_checks` let pass. Raises: MalformedTransaction for another one."""
    transaction = decode_transaction(payload.transaction)
    accounts = transaction.message.accounts
    transfer = read_transfer_checked(transaction.message.instructions[2])
    if transfer is None:
        raise MalformedTransaction("the third instruction is not TransferChecked")
    return SolanaTransfer(
        payload,
        transaction,
        fee_payer=encode_key(accounts[0]),
        payer=encode_key(accounts[transfer.authority]),
        source=encode_key(accounts[transfer.source]),
        destination=encode_key(accounts[transfer.destination]),
        value=transfer.amount,
    )


def transfer_of(payload: SolanaPayload) -> SolanaTransfer | None:
    """The transfer, where the payload holds one at all, whatever rules it breaks."""
    try:
        return read_transfer(payload)
    except (MalformedTransaction, IndexError):
        return None


def payer_of(payload: SolanaPayload) -> str | None:
    """Return the payer if the payload holds a transfer at all; else None."""
    transfer = transfer_of(payload)
    return None if transfer is None else transfer.payer


def transaction_checks(payload: SolanaPayload, asset: SolanaAsset, policy: FeePolicy | None = None) -> Iterator[Check]:
    """Yield the checks that hold for every recipient. They end at the first broken rule that the next ones build on.

    Without a policy somebody else pays the fee and judges what he signs: then it is one transfer, which its payer
    signed.
    """
    try:
        transaction = decode_transaction(payload.transaction)
    except MalformedTransaction as error:
        yield Check("transaction", ok=False, reason=Reason.SVM_TRANSACTION, expected="a transaction", actual=str(error))
        return
    message = transaction.message
    yield Check("transaction", ok=True, reason=Reason.SVM_TRANSACTION)
    tables = message.lookup_tables
    yield Check("lookupTables", tables == 0, Reason.SVM_TRANSACTION, 0, tables)
    count = len(message.instructions)
    is_counted = INSTRUCTIONS_MIN <= count <= INSTRUCTIONS_MAX
    yield Check("instructionCount", is_counted, Reason.SVM_LENGTH, _COUNTS, count)
    if tables or not is_counted:
        return
    if policy is not None:
        yield from _fee_payer_checks(message, policy)
        yield from _compute_checks(message, policy)
        yield _optional_check(message)
        yield _moved_check(message)
    else:
        yield _lifetime_check(message)
    yield from _transfer_checks(transaction, asset)


def _program(message: Message, instruction: Instruction) -> str:
    return encode_key(message.accounts[instruction.program])


def _lifetime_check(message: Message) -> Check:
    """Refuse a transaction that advances a nonce account first: it could be executed in years.

    Beside a policy the first rule refuses it already.
    """
    program = _program(message, message.instructions[0])
    return Check("blockhash", program != SYSTEM_PROGRAM, Reason.SVM_INSTRUCTIONS, "a recent blockhash", program)


# Rules that cost next to nothing are judged together, which is faster than one after the other.


def _fee_payer_checks(message: Message, policy: FeePolicy) -> tuple[Check, ...]:
    fee_payer = encode_key(message.accounts[0])
    is_ours = fee_payer in policy.fee_payers
    users = [position for position, used in enumerate(message.instructions) if 0 in used.accounts]
    return (
        Check("feePayer", is_ours, Reason.SVM_FEE_PAYER, policy.fee_payers, fee_payer),
        Check("feePayerIsolated", not users, Reason.SVM_FEE_PAYER_USED, [], users),
    )


def _compute_checks(message: Message, policy: FeePolicy) -> tuple[Check, ...]:
    first, second = message.instructions[:2]
    limit = read_compute_unit_limit(first) if message.accounts[first.program] == _COMPUTE_BUDGET else None
    price = read_compute_unit_price(second) if message.accounts[second.program] == _COMPUTE_BUDGET else None
    top, dear = policy.compute_limit_max, policy.compute_price_max_micro_lamports
    return (
        Check("computeLimit", limit is not None, Reason.SVM_COMPUTE_LIMIT, "SetComputeUnitLimit", limit),
        Check("computeLimitMax", limit is None or limit <= top, Reason.SVM_COMPUTE_LIMIT_HIGH, _up_to(top), limit),
        Check("computePrice", price is not None, Reason.SVM_COMPUTE_PRICE, "SetComputeUnitPrice", price),
        Check("computePriceMax", price is None or price <= dear, Reason.SVM_COMPUTE_PRICE_HIGH, _up_to(dear), price),
    )


@lru_cache(maxsize=64)
def _up_to(most: int) -> str:
    return f"<= {most}"


def _optional_check(message: Message) -> Check:
    programs = [message.accounts[instruction.program] for instruction in message.instructions[3:]]
    others = [encode_key(program) for program in programs if program not in _AFTER_TRANSFER]
    return Check("afterTransfer", not others, Reason.SVM_INSTRUCTIONS, "only Memo and Lighthouse", others)


def _moved_check(message: Message) -> Check:
    """To move nothing would cost a fee all the same, and its payer nothing, not even a balance."""
    transfer = read_transfer_checked(message.instructions[2])
    amount = None if transfer is None else str(transfer.amount)
    return Check("moved", amount != "0", Reason.SVM_AMOUNT_LOW, "> 0", amount)


def _transfer_checks(transaction: SolanaTransaction, asset: SolanaAsset) -> Iterator[Check]:
    message = transaction.message
    instruction = message.instructions[2]
    program = _program(message, instruction)
    is_token = program in _TRANSFER
    yield Check("transfer", is_token, Reason.SVM_NOT_TRANSFER, asset.token_program, program)
    transfer = read_transfer_checked(instruction)
    is_ours = program == asset.token_program and transfer is not None
    reason = Reason.SVM_NOT_SPL_TRANSFER if asset.token_program == TOKEN_PROGRAM else Reason.SVM_NOT_2022_TRANSFER
    yield Check("transferChecked", is_ours, reason, _TRANSFER[asset.token_program], program)
    if transfer is None:
        return
    signers = message.required_signatures
    yield Check("signers", signers == _SIGNERS, Reason.SVM_SIGNERS, _SIGNERS, signers)
    is_signer = transfer.authority == 1
    yield Check("authority", is_signer, Reason.SVM_SIGNERS, "the second signer", _named(message, transfer.authority))
    yield _destination_check(message, transfer)
    mint = _named(message, transfer.mint)
    yield Check("mint", mint == asset.address, Reason.SVM_MINT, asset.address, mint)
    decimals = asset.network.usdc.decimals
    yield Check("decimals", transfer.decimals == decimals, Reason.SVM_MINT, decimals, transfer.decimals)
    yield from _signature_checks(transaction, is_signed_by_payer=signers == _SIGNERS and is_signer)


def _destination_check(message: Message, transfer: TransferChecked) -> Check:
    """From an account to itself the token program moves nothing, and calls it a success.

    For its owner, and for whomever its owner lets spend from it: he would pay a seller with what the seller has, as
    often as he likes, and nothing of what he may spend would be used up.
    """
    is_another = transfer.source != transfer.destination
    destination = _named(message, transfer.destination)
    return Check("destination", is_another, Reason.SVM_RECIPIENT, _ANOTHER, destination)


def _signature_checks(transaction: SolanaTransaction, *, is_signed_by_payer: bool) -> Iterator[Check]:
    """Last, because it costs more than all others together."""
    ours = transaction.signatures[0]
    yield Check("feePayerSignature", ours == NO_SIGNATURE, Reason.SVM_TRANSACTION, "64 zero bytes", ours.hex())
    if not is_signed_by_payer:
        return
    message = transaction.message
    is_valid = _is_signed(message.accounts[1], transaction.signatures[1], message.raw)
    yield Check("signature", is_valid, Reason.SVM_SIGNATURE, _named(message, 1), is_valid)


@lru_cache(maxsize=256)
def _is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    """Verify as `ed25519.verify` does.

    A gate, its hub and the fee payer each judge a payment that comes to all of them.
    """
    return ed25519.verify(key, signature, message)


def _named(message: Message, position: int) -> str:
    return encode_key(message.accounts[position])


def requirement_checks(
    transfer: SolanaTransfer, requirements: Requirements, asset: SolanaAsset, fee_payers: Collection[str] = ()
) -> Iterator[Check]:
    """Does the transaction pay what these requirements ask, to whom they say?

    They may name another of `fee_payers`: a server that asks anew who pays the fees may be told another one than the
    buyer was.
    """
    asked = requirements.asset
    yield Check("requirements.asset", asked == asset.address, Reason.REQUIREMENTS, asset.address, asked)
    named = requirements.extra.get("feePayer", transfer.fee_payer)
    is_named = named == transfer.fee_payer or named in fee_payers
    yield Check("requirements.feePayer", is_named, Reason.SVM_FEE_PAYER_MISMATCH, transfer.fee_payer, named)
    yield from recipient_checks(transfer, requirements.pay_to, asset)
    yield asset.price_check(transfer.value, requirements.amount)
    memo = requirements.extra.get("memo")
    if memo:
        yield from _memo_checks(transfer.transaction.message, memo)


def recipient_checks(transfer: SolanaTransfer, pay_to: str, asset: SolanaAsset) -> Iterator[Check]:
    """Is the transfer's destination the recipient's associated token account?"""
    try:
        yield asset.recipient_check(transfer.destination, pay_to)
    except ValueError:
        yield Check("recipient", ok=False, reason=Reason.REQUIREMENTS, expected="a Solana address", actual=pay_to)


def has_memo(transfer: SolanaTransfer) -> bool:
    """Did the payer add a memo? Clients do so to tell one payment from another."""
    return bool(_memos(transfer.transaction.message))


def _memos(message: Message) -> list[bytes]:
    """Return the data of the memos behind the transfer. A program that only a lookup table names is no memo."""
    own = len(message.accounts)
    behind = [used for used in message.instructions[3:] if used.program < own]
    return [used.data for used in behind if _program(message, used) == MEMO_PROGRAM]


def _memo_checks(message: Message, memo: str) -> Iterator[Check]:
    memos = _memos(message)
    yield Check("memoCount", len(memos) == 1, Reason.SVM_MEMO_COUNT, 1, len(memos))
    yield Check("memo", memo.encode() in memos, Reason.SVM_MEMO, memo, [data.hex() for data in memos])


@dataclass(frozen=True, slots=True)
class SolanaFacts:
    """Facts that a node stated about one transaction. `error` is of the simulation, None if it passed.

    `blocks_left`: the number of blocks for which the blockhash stays valid; None if no node says.
    """

    source: TokenAccount | None
    destination: TokenAccount | None
    is_blockhash_valid: bool
    error: str | None
    blocks_left: int | None = None


def chain_checks(transfer: SolanaTransfer, asset: SolanaAsset, facts: SolanaFacts) -> Iterator[Check]:
    """Yield the checks of the chain's facts, the most telling first: a failed simulation is then named by its cause.

    The blockhash comes before the money, because nothing else says why a payment with one that is too old would not
    pass: the payment may have been carried out, and its money be gone since.
    """
    yield Check("unprocessed", facts.error != ALREADY_PROCESSED, Reason.DUPLICATE, "not yet on the chain", facts.error)
    is_recent = facts.is_blockhash_valid
    known = is_recent or "older than those, or newer than the node knows"
    yield Check("blockhash", is_recent, Reason.SVM_EXPIRED, "one of the 150 newest blockhashes", known)
    left = facts.blocks_left
    yield Check("blocksLeft", left is None or left >= BLOCKS_LEFT_MIN, Reason.SVM_EXPIRED, _LONG_ENOUGH, left)
    destination, source = facts.destination, facts.source
    holder = asset.holder(transfer.destination, destination)
    found = destination is not None and (holder.why_not or True)
    yield Check("recipientAccount", holder.is_its_own, Reason.SVM_NO_RECIPIENT, transfer.destination, found)
    is_there = source is not None and source.is_usable and source.mint == asset.address
    yield Check("payerAccount", is_there, Reason.SVM_NO_SENDER, transfer.source, source is not None)
    balance = 0 if source is None else source.amount
    yield Check("balance", balance >= transfer.value, Reason.FUNDS, str(transfer.value), str(balance))
    yield Check("simulation", facts.error is None, Reason.SVM_SIMULATION, None, facts.error)
