"""Books and chain compared, in both directions (security I6, I7, I8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tollkeeper.core.settlement.reconciliation import (
    RECORDED_WITHIN_BLOCKS,
    BookedPayment,
    ChainPayment,
    Difference,
    Entry,
    compare,
)
from tollkeeper.core.x402.version1 import PaymentKey

KEY = PaymentKey("base", "0xa55e7", "0xpayer", "0x01")
OTHER = structs.replace(KEY, nonce="0x02")
PAID = Entry("s-1", KEY, "0xpayee", 10, BookedPayment.PAID, "0xhash", 7)
SEEN = ChainPayment(KEY, "0xpayee", 10, "0xhash", "0xsigner", 7)
BLOCKS = range(5, 20)


def rules(entries: list[Entry], payments: list[ChainPayment], **given: object) -> list[tuple[str, str]]:
    asked = {"signers": {"0xsigner"}, "blocks": BLOCKS, "sold_to": {"0xpayee"}, **given}
    found: list[Difference] = compare(entries, payments, **asked)  # type: ignore[arg-type]  # kept short for the cases
    assert all(str(difference).startswith(f"{difference.rule}: {difference.subject}: ") for difference in found)
    return [(difference.rule, difference.subject) for difference in found]


def test_books_that_are_as_the_chain_is_differ_in_nothing() -> None:
    assert rules([PAID], [SEEN]) == []
    assert rules([PAID], [replace(SEEN, sender="0xfacilitator")], signers=set()) == []


@pytest.mark.parametrize(
    ("entry", "payment", "rule"),
    [
        (None, SEEN, "settled_but_not_in_the_books"),
        (None, replace(SEEN, sender="0xother"), "payment_without_purchase"),
        (replace(PAID, standing=BookedPayment.FAILED), SEEN, "failed_but_carried_out"),
        (replace(PAID, standing=BookedPayment.FAILED), replace(SEEN, sender="0xother"), "failed_but_carried_out"),
        (replace(PAID, standing=BookedPayment.REFUSED), SEEN, "failed_but_carried_out"),
        (replace(PAID, standing=BookedPayment.REFUSED), replace(SEEN, sender="0xother"), "payment_without_purchase"),
        (replace(PAID, standing=BookedPayment.OPEN), SEEN, "carried_out_but_open"),
        (PAID, replace(SEEN, sender="0xother"), "paid_by_a_stranger"),
        (PAID, replace(SEEN, value=11), "paid_otherwise"),
        (PAID, replace(SEEN, pay_to="0xelse"), "paid_otherwise"),
        (PAID, replace(SEEN, transaction_hash="0xother"), "paid_in_another_transaction"),
        (PAID, None, "paid_but_not_on_the_chain"),
    ],
)
def test_each_difference_is_listed(entry: Entry | None, payment: ChainPayment | None, rule: str) -> None:
    subject = "base/0xpayer/0x01" if entry is None else "s-1"
    assert rules([entry] if entry else [], [payment] if payment else []) == [(rule, subject)]


@pytest.mark.parametrize(
    ("entries", "payments"),
    [
        # A stranger's payment to a stranger: anybody can cause one.
        ([], [replace(SEEN, sender="0xother", pay_to="0xstranger")]),
        *(
            (
                [replace(PAID, standing=standing, pay_to="0xstranger")],
                [replace(SEEN, sender="0xother", pay_to="0xstranger")],
            )
            for standing in (BookedPayment.FAILED, BookedPayment.REFUSED)
        ),
        ([replace(PAID, block_number=20)], []),  # not in these blocks
        ([replace(PAID, block_number=None)], []),
        ([replace(PAID, standing=BookedPayment.OPEN)], []),
        ([replace(PAID, standing=BookedPayment.OPEN)], [replace(SEEN, block_number=20 - RECORDED_WITHIN_BLOCKS)]),
    ],
)
def test_what_is_nobodys_fault_is_not_listed(entries: list[Entry], payments: list[ChainPayment]) -> None:
    assert rules(entries, payments) == []


@pytest.mark.parametrize(
    ("standing", "transaction", "rule"),
    [
        (BookedPayment.FAILED, "0xhash", "failed_but_carried_out"),
        (BookedPayment.REFUSED, "0xhash", "payment_without_purchase"),
        (BookedPayment.REFUSED, "", "payment_without_purchase"),
        (BookedPayment.REFUSED, "0xother", "failed_but_carried_out"),
    ],
)
def test_where_somebody_else_sends_for_us_what_failed_here_is_listed(
    standing: BookedPayment, transaction: str, rule: str
) -> None:
    entry = replace(PAID, standing=standing, transaction_hash=transaction)
    assert rules([entry], [SEEN], signers=set()) == [(rule, "s-1")]


def test_where_somebody_else_sends_for_us_a_payment_without_a_purchase_is_listed() -> None:
    assert rules([], [SEEN], signers=set()) == [("payment_without_purchase", "base/0xpayer/0x01")]
    assert rules([PAID], [SEEN, replace(SEEN, key=OTHER)], signers=set()) == [
        ("payment_without_purchase", "base/0xpayer/0x02")
    ]
