"""What logs say of one authorization: its own two events, side by side, and nobody else's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.evm.encoding import AUTHORIZATION_USED_TOPIC, TRANSFER_TOPIC
from tollkeeper.core.evm.receipt_logs import Log, Transfer, shows_transfer

ASSET = "0x" + "aa" * 20
# Few values each, so that transfers that differ in one thing only, or in nothing but the nonce, are common.
few_addresses = st.sampled_from(["0x" + digit * 40 for digit in "12"])
transfers = st.builds(
    Transfer,
    asset=st.just(ASSET),
    payer=few_addresses,
    pay_to=few_addresses,
    value=st.integers(1, 2),
    nonce=st.binary(min_size=32, max_size=32).map(lambda raw: "0x" + raw.hex()),
)
ONE = Transfer(ASSET, "0x" + "1" * 40, "0x" + "2" * 40, 7, "0x" + "3" * 64)
OTHER = replace(ONE, nonce="0x" + "4" * 64)


def word(address: str) -> str:
    return "0x" + "0" * 24 + address[2:]


def used(one: Transfer) -> Log:
    return Log(one.asset, (AUTHORIZATION_USED_TOPIC, word(one.payer), one.nonce), "0x")


def moved(one: Transfer) -> Log:
    return Log(one.asset, (TRANSFER_TOPIC, word(one.payer), word(one.pay_to)), f"0x{one.value:064x}")


@given(st.lists(st.tuples(transfers, st.booleans()), min_size=1, max_size=8, unique_by=lambda pair: pair[0].nonce))
def test_each_item_of_a_batch_is_judged_by_its_own_events(items: list[tuple[Transfer, bool]]) -> None:
    for order in ((used, moved), (moved, used)):
        logs = [event(one) for one, succeeds in items if succeeds for event in order]
        assert [shows_transfer(logs, one) for one, _ in items] == [succeeds for _, succeeds in items]


@given(st.lists(transfers, min_size=2, max_size=6, unique_by=lambda one: one.nonce), st.data())
def test_an_item_whose_transfer_another_made_is_no_success(items: list[Transfer], data: st.DataObject) -> None:
    """Its authorization was used, and what stands beside that moved something else."""
    logs = [event(one) for one in items for event in (used, moved)]
    index = data.draw(st.integers(0, len(items) - 1))
    one = items[index]
    wrong = data.draw(
        st.sampled_from(
            [
                replace(one, value=one.value + 1),
                replace(one, pay_to="0x" + "3" * 40),
                replace(one, payer="0x" + "3" * 40),
                replace(one, asset="0x" + "bb" * 20),
            ]
        )
    )
    logs[2 * index + 1] = moved(wrong)
    assert not shows_transfer(logs, one)


def test_a_transfer_alone_may_stand_among_other_events() -> None:
    fee = moved(replace(ONE, value=1))
    assert shows_transfer([used(ONE), moved(ONE)], ONE)
    assert shows_transfer([moved(ONE), fee, used(ONE)], ONE)


@pytest.mark.parametrize(
    "logs",
    [
        [],
        [used(ONE)],
        [moved(ONE)],
        [moved(ONE), moved(ONE), used(ONE)],
        [used(OTHER), moved(ONE)],
        [used(ONE), moved(replace(ONE, value=8))],
        [used(replace(ONE, asset="0x" + "bb" * 20)), moved(ONE)],
    ],
)
def test_a_transfer_alone_without_its_two_events_is_none(logs: list[Log]) -> None:
    assert not shows_transfer(logs, ONE)


@pytest.mark.parametrize(
    "logs",
    [
        [used(ONE), moved(ONE), used(ONE), moved(ONE)],
        [used(ONE), moved(ONE), used(OTHER)],
        [used(ONE), used(OTHER), moved(ONE), moved(OTHER)],
        [used(ONE), used(OTHER)],
    ],
)
def test_events_of_a_batch_that_come_in_no_pairs_prove_nothing(logs: list[Log]) -> None:
    assert not shows_transfer(logs, ONE)


def test_what_a_payer_moves_besides_in_the_same_transaction_disturbs_nothing() -> None:
    """As the wallet's own code can, where the transaction deploys it: the use is followed by its transfer."""
    besides = moved(replace(ONE, value=1))
    for logs in (
        [used(ONE), moved(ONE), moved(ONE)],
        [moved(ONE), used(ONE), moved(ONE)],
        [besides, used(OTHER), moved(replace(ONE, value=8)), besides, used(ONE), moved(ONE), besides],
    ):
        assert shows_transfer(logs, ONE)
    assert not shows_transfer([moved(ONE), used(ONE), besides, moved(ONE)], ONE)


def test_other_events_and_other_contracts_do_not_disturb_the_pairs() -> None:
    approval = Log(ASSET, ("0x" + "5" * 64,), "0x")
    anonymous = Log(ASSET, (), "0x")
    elsewhere = moved(replace(ONE, asset="0x" + "bb" * 20))
    logs = [approval, used(ONE), anonymous, elsewhere, moved(ONE), used(OTHER), approval, moved(OTHER)]
    assert shows_transfer(logs, ONE)


def test_an_amount_that_is_no_number_is_no_log_of_a_token() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        shows_transfer([replace(moved(ONE), data="zz"), used(ONE)], ONE)


@pytest.mark.parametrize("topics", [1, 2, 4])
@pytest.mark.parametrize("kind", [AUTHORIZATION_USED_TOPIC, TRANSFER_TOPIC])
def test_an_event_with_other_topics_than_its_kind_has_is_no_log_of_a_token(kind: str, topics: int) -> None:
    odd = Log(ASSET, (kind, word(ONE.payer), ONE.nonce, ONE.nonce)[:topics], "0x")
    with pytest.raises(ValueError, match="other topics"):
        shows_transfer([used(ONE), moved(ONE), odd, moved(ONE)], ONE)
