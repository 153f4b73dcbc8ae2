"""Addresses of both families are read, kept and shown in one spelling each (contract 3.1, 6; A-35)."""

from __future__ import annotations

import pytest

from tests.core.payments import PAYER
from tests.core.solana_payments import PAYER as SOLANA_PAYER
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.networks import Family
from tollkeeper.core.wallets import family_of, parse_address_of, parse_wallet, shown_address

SOLANA = str(SOLANA_PAYER.pubkey())


def test_an_evm_address_is_kept_in_lower_case_and_shown_with_its_checksum() -> None:
    assert parse_wallet(PAYER) == parse_wallet(checksum_address(PAYER)) == PAYER
    assert shown_address(PAYER) == checksum_address(PAYER)
    assert family_of(PAYER) is Family.EVM


def test_a_solana_address_is_kept_and_shown_as_it_is_written() -> None:
    assert parse_wallet(SOLANA) == shown_address(SOLANA) == SOLANA
    assert family_of(SOLANA) is Family.SOLANA


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        PAYER[2:],
        PAYER + "0",
        checksum_address(PAYER).swapcase(),
        SOLANA[:20],
        SOLANA + "1",
        None,
        7,
    ],
)
def test_what_is_neither_is_refused(text: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse_wallet(text, field="walletAddress")
    assert caught.value.code is Code.INVALID_ADDRESS
    assert caught.value.details == {"field": "walletAddress"}


def test_an_address_is_read_as_of_the_family_that_is_asked_for() -> None:
    assert parse_address_of(Family.EVM, checksum_address(PAYER), field="asset") == PAYER
    assert parse_address_of(Family.SOLANA, SOLANA, field="asset") == SOLANA
    for family, other in ((Family.EVM, SOLANA), (Family.SOLANA, PAYER)):
        with pytest.raises(ApiError) as caught:
            parse_address_of(family, other, field="asset")
        assert caught.value.code is Code.INVALID_ADDRESS
