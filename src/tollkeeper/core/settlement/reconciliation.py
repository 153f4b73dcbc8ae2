"""The books against the chain, in both directions (security I6, I7, I8, A-08, F22).

Every payment on the chain that our signers sent, or that reached an address of our sales, must be in the books as it is
on the chain; everything that the books call paid must be on the chain. What this module does not do: read either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tollkeeper.core.x402.version1 import PaymentKey


# Differences that a check of the books reports: two things that must agree and do not (security 5). The rules are named
# after the invariants I1 to I14 of docs/security.md where they are among them.


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """`rule` is what does not hold, `subject` what it does not hold of, `found` what was there in its place."""

    rule: str
    subject: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.found}"


# What is newer may be on its way into the books.
RECORDED_WITHIN_BLOCKS: Final = 5


class BookedPayment(Enum):
    """States of a payment in the books."""

    PAID = auto()
    OPEN = auto()
    FAILED = auto()
    REFUSED = auto()  # because another transaction had used it: the one that is named


@dataclass(frozen=True, slots=True)
class Entry:
    """One payment in the books. `block_number` None where they do not keep it."""

    id: str
    key: PaymentKey
    pay_to: str
    value: int
    standing: BookedPayment
    transaction_hash: str
    block_number: int | None


@dataclass(frozen=True, slots=True)
class ChainPayment:
    """A transfer by authorization as the chain has it. `sender` sent the transaction; all hex in lower case.

    `holder`: the wallet that held the account that was paid when it was; empty where the chain keeps no such accounts,
    or does not tell.
    """

    key: PaymentKey
    pay_to: str
    value: int
    transaction_hash: str
    sender: str
    block_number: int
    holder: str = ""


def compare(
    entries: Sequence[Entry],
    payments: Sequence[ChainPayment],
    signers: Collection[str],
    blocks: range,
    sold_to: Collection[str],
) -> list[Difference]:
    """Every difference within these blocks.

    `payments` are all that reached the entries' addresses in them. `signers`: our own, empty where somebody else sends
    for us and any sender will do. `sold_to`: addresses that our gates sell for, where a payment that nobody here
    settled, or that failed here, is worth knowing: its seller has it, and its buyer nothing. Between strangers it is
    nobody's business here, and anybody could cause it.
    """
    known = {entry.key: entry for entry in entries}
    found = [_of_payment(payment, known.get(payment.key), signers, blocks, sold_to) for payment in payments]
    seen = {payment.key for payment in payments}
    found += [
        Difference("paid_but_not_on_the_chain", entry.id, f"{entry.transaction_hash} in block {entry.block_number}")
        for entry in entries
        if entry.standing is BookedPayment.PAID and entry.block_number in blocks and entry.key not in seen
    ]
    return sorted(difference for difference in found if difference is not None)


def _of_payment(
    payment: ChainPayment, entry: Entry | None, signers: Collection[str], blocks: range, sold_to: Collection[str]
) -> Difference | None:
    is_ours = not signers or payment.sender in signers
    rule = None
    if entry is None:
        if signers and is_ours:
            rule = "settled_but_not_in_the_books"
        elif payment.pay_to in sold_to:
            rule = "payment_without_purchase"
    elif entry.standing in {BookedPayment.FAILED, BookedPayment.REFUSED}:
        if (signers and is_ours) or payment.pay_to in sold_to:
            is_that = entry.transaction_hash.lower() in {"", payment.transaction_hash.lower()}
            is_told = entry.standing is BookedPayment.REFUSED and is_that and not (signers and is_ours)
            rule = "payment_without_purchase" if is_told else "failed_but_carried_out"
    elif entry.standing is BookedPayment.OPEN:
        rule = "carried_out_but_open" if payment.block_number < blocks.stop - RECORDED_WITHIN_BLOCKS else None
    else:
        rule = _of_paid(payment, entry, is_ours=is_ours)
    if rule is None:
        return None
    key = payment.key
    subject = f"{key.network}/{key.payer}/{key.nonce}" if entry is None else entry.id
    where = f"{payment.transaction_hash} in block {payment.block_number}, sent by {payment.sender}"
    return Difference(rule, subject, f"{payment.value} to {payment.pay_to}, {where}")


def _of_paid(payment: ChainPayment, entry: Entry, *, is_ours: bool) -> str | None:
    if not is_ours:
        return "paid_by_a_stranger"
    if (payment.pay_to, payment.value) != (entry.pay_to, entry.value):
        return "paid_otherwise"
    return None if entry.transaction_hash == payment.transaction_hash else "paid_in_another_transaction"
