"""A settlement fails by proof alone, and larger amounts wait for more blocks (security 5; contract 5.2)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tollkeeper.core.settlement.states import EXPIRY_MARGIN_SECONDS, AuthorizationEvidence, Conclusion, Depths, conclude

END = 1_000_000
NOTHING = AuthorizationEvidence(
    is_used=False, user_is_ours=None, nonces_consumed=False, block_seconds=END, valid_before_seconds=END
)


def test_what_is_not_proven_waits() -> None:
    assert conclude(NOTHING) is Conclusion.WAIT
    assert conclude(replace(NOTHING, is_used=True)) is Conclusion.WAIT


@pytest.mark.parametrize(("is_ours", "conclusion"), [(True, Conclusion.OURS), (False, Conclusion.FOREIGN)])
@pytest.mark.parametrize("is_consumed", [True, False])
def test_who_used_it_decides_whatever_became_of_our_nonces(
    *, is_ours: bool, conclusion: Conclusion, is_consumed: bool
) -> None:
    evidence = replace(NOTHING, is_used=True, user_is_ours=is_ours, nonces_consumed=is_consumed)
    assert conclude(evidence) is conclusion


def test_an_unused_authorization_whose_nonces_are_gone_has_reverted() -> None:
    assert conclude(replace(NOTHING, nonces_consumed=True)) is Conclusion.REVERTED


@pytest.mark.parametrize(("late", "conclusion"), [(-1, Conclusion.WAIT), (0, Conclusion.EXPIRED)])
def test_an_unused_authorization_expires_a_margin_after_its_end(late: int, conclusion: Conclusion) -> None:
    seconds = END + EXPIRY_MARGIN_SECONDS + late
    assert conclude(replace(NOTHING, block_seconds=seconds)) is conclusion


def test_a_used_authorization_neither_reverts_nor_expires() -> None:
    for is_ours, is_consumed in product((None, True, False), (True, False)):
        evidence = AuthorizationEvidence(
            is_used=True,
            user_is_ours=is_ours,
            nonces_consumed=is_consumed,
            block_seconds=2 * END,
            valid_before_seconds=END,
        )
        assert conclude(evidence) not in {Conclusion.REVERTED, Conclusion.EXPIRED}


def test_an_amount_needs_the_depth_of_every_step_that_it_reaches() -> None:
    depths = Depths(2, ((1_000, 12), (100, 3)))
    assert [depths.of(value) for value in (0, 99, 100, 999, 1_000, 10**9)] == [2, 2, 3, 3, 12, 12]
    assert Depths().of(10**30) == 1
    assert Depths(5, ((0, 1),)).of(7) == 5
