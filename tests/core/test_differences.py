"""A difference in the books names rule, subject and what was found, and a list of them has an order."""

from __future__ import annotations

from tollkeeper.core.settlement.reconciliation import Difference


def test_a_difference_reads_as_one_line_and_sorts_by_its_rule() -> None:
    first, second = Difference("I2", "purchase pur_1", "3 credits"), Difference("I3", "call 1", "nothing")
    assert str(first) == "I2: purchase pur_1: 3 credits"
    assert sorted([second, first]) == [first, second]
