"""USDC amounts are exact, both ways, or refused (specification 2.1, contract 3.1, security A-34)."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.usdc import MICRO_PER_USDC, format_usdc, parse_usdc

LARGEST_MICRO = 10**12 * MICRO_PER_USDC - 1

REFUSED: list[object] = [
    "",
    "0",
    "0.0",
    "0.000000",
    "-0",
    "-1",
    "+1",
    " 1",
    "1 ",
    "1\n",
    "\n1",
    "1.",
    ".5",
    "00",
    "01",
    "1.2.3",
    "1,5",
    "1_0",
    "1e2",
    "1E2",
    "1e999999999",
    "1e-2",
    "0x10",
    "0.0000001",
    "1.0000000",
    "1000000000000",
    "1" * 5000,
    str(2**256),
    "NaN",
    "Infinity",
    "-Infinity",
    "\uff11\uff12",  # fullwidth digits
    "\u0661\u0662",  # Arabic-Indic digits
    "0.\u0661",
    "\U0001d7d9",
    "1\u0000",
    "1\u2024" + "5",
    "\ud800",
    "$1",
    "1 USDC",
    1,
    0.01,
    True,
    None,
    b"1",
    Decimal("0.01"),
    ["1"],
    {"amount": "1"},
]


def test_every_one_of_the_first_two_million_micro_amounts_round_trips_exactly() -> None:
    wrong = [micro for micro in range(1, 2_000_001) if parse_usdc(format_usdc(micro)) != micro]
    assert wrong == []


@given(st.integers(min_value=1, max_value=LARGEST_MICRO))
def test_any_amount_round_trips_and_its_text_means_the_same_decimal(micro: int) -> None:
    text = format_usdc(micro)
    assert parse_usdc(text) == micro
    assert Decimal(text) * MICRO_PER_USDC == micro


@given(st.integers(min_value=0, max_value=10**12 - 1), st.text("0123456789", min_size=1, max_size=6))
def test_every_decimal_text_is_read_as_its_exact_value(whole: int, decimals: str) -> None:
    text = f"{whole}.{decimals}"
    exact = Decimal(text) * MICRO_PER_USDC
    if exact == 0:
        with pytest.raises(ApiError):
            parse_usdc(text)
    else:
        assert parse_usdc(text) == exact


@given(st.text(max_size=12))
def test_any_text_is_an_exact_amount_or_invalid_amount(text: str) -> None:
    micro = amount_or_refusal(text)
    if isinstance(micro, int):
        assert text.isascii()
        assert Decimal(text) * MICRO_PER_USDC == micro
    else:
        assert micro is Code.INVALID_AMOUNT


def amount_or_refusal(text: str) -> int | Code:
    try:
        return parse_usdc(text)
    except ApiError as error:
        return error.code


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text)[:30])
def test_what_is_not_an_exact_amount_above_zero_is_invalid_amount(text: object) -> None:
    with pytest.raises(ApiError) as refused:
        parse_usdc(text)
    assert refused.value.code is Code.INVALID_AMOUNT
    assert refused.value.status == 400


def test_the_refusal_names_the_field_that_was_wrong() -> None:
    for text in ("x", "0"):
        with pytest.raises(ApiError) as refused:
            parse_usdc(text, field="fee")
        assert refused.value.details == {"field": "fee"}
        assert refused.value.message.startswith("fee ")


@pytest.mark.parametrize(
    ("text", "micro"),
    [
        ("0.000001", 1),
        ("0.01", 10_000),
        ("0.1", 100_000),
        ("0.100000", 100_000),
        ("1", 1_000_000),
        ("2.01", 2_010_000),
        ("999999999999.999999", LARGEST_MICRO),
    ],
)
def test_known_amounts(text: str, micro: int) -> None:
    assert parse_usdc(text) == micro


@pytest.mark.parametrize(
    ("micro", "text"),
    [(0, "0"), (1, "0.000001"), (10_000, "0.01"), (1_500_000, "1.5"), (2_000_000, "2"), (100_000_000, "100")],
)
def test_the_shortest_text_is_written(micro: int, text: str) -> None:
    assert format_usdc(micro) == text
