"""A sale is served on trust within the caps, by number and by value, and not beyond either (contract 4.4)."""

from __future__ import annotations

import pytest

from tollkeeper.core.trust import DEFAULT_EXPOSURE, WITHOUT_LIMIT, Exposure


@pytest.mark.parametrize(
    ("purchases", "value_micro", "is_allowed"),
    [(0, 0, True), (1, 90, True), (2, 0, False), (1, 91, False)],
)
def test_one_more_sale_is_trusted_within_both_caps(purchases: int, value_micro: int, *, is_allowed: bool) -> None:
    assert Exposure(purchases, value_micro).allows(10, Exposure(2, 100)) is is_allowed


def test_all_payers_of_a_gate_may_owe_ten_times_what_one_may() -> None:
    payer, gate = DEFAULT_EXPOSURE.payer, DEFAULT_EXPOSURE.gate
    assert (gate.purchases, gate.value_micro) == (10 * payer.purchases, 10 * payer.value_micro)
    assert payer.allows(10**15, WITHOUT_LIMIT.payer)
