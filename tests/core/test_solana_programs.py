"""Accounts and instructions are those that Solana's own library makes (specification 2.3; A-29, A-32)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address
from solders.token.state import Mint, TokenAccountState
from solders.token.state import TokenAccount as TheirTokenAccount

from tests.core.solana_payments import DEVNET, FEE_PAYER, PAYER, transfer
from tollkeeper.core.solana.message import Instruction
from tollkeeper.core.solana.programs import (
    ASSOCIATED_TOKEN_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    TokenMint,
    TransferChecked,
    associated_token_account,
    find_program_address,
    read_compute_unit_limit,
    read_compute_unit_price,
    read_mint,
    read_recent_blockhashes,
    read_token_account,
    read_transfer_checked,
)

keys = st.binary(min_size=32, max_size=32).map(Pubkey)


@given(keys, keys)
def test_associated_accounts_are_those_of_solders(owner: Pubkey, mint: Pubkey) -> None:
    for program in (TOKEN_PROGRAM, TOKEN_2022_PROGRAM):
        theirs = get_associated_token_address(owner, mint, Pubkey.from_string(program))
        assert associated_token_account(str(owner), str(mint), program) == str(theirs)


@given(st.lists(st.binary(max_size=32), max_size=6))
def test_program_addresses_and_bumps_are_those_of_solders(seeds: list[bytes]) -> None:
    theirs = Pubkey.find_program_address(seeds, Pubkey.from_string(ASSOCIATED_TOKEN_PROGRAM))
    assert find_program_address(tuple(seeds), ASSOCIATED_TOKEN_PROGRAM) == (str(theirs[0]), theirs[1])


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_compute_budgets_are_read_from_the_instructions_of_solders(limit: int, price: int) -> None:
    assert read_compute_unit_limit(Instruction(1, b"", bytes(set_compute_unit_limit(limit).data))) == limit
    assert read_compute_unit_price(Instruction(1, b"", bytes(set_compute_unit_price(price).data))) == price


@given(st.integers(0, 2**64 - 1), st.integers(0, 255))
def test_a_transfer_is_read_with_its_accounts_in_order(amount: int, decimals: int) -> None:
    made = transfer(amount, decimals=decimals)
    assert read_transfer_checked(Instruction(9, b"\x03\x05\x04\x01", bytes(made.data))) == TransferChecked(
        source=3, mint=5, destination=4, authority=1, amount=amount, decimals=decimals
    )


LIMIT, PRICE, TRANSFER = b"\x02" + bytes(4), b"\x03" + bytes(8), b"\x0c" + bytes(9)


@pytest.mark.parametrize("data", [b"", LIMIT[:-1], LIMIT + b"\x00", b"\x01" + bytes(4), PRICE, TRANSFER])
def test_another_instruction_is_no_compute_limit(data: bytes) -> None:
    assert read_compute_unit_limit(Instruction(1, b"", data)) is None


@pytest.mark.parametrize("data", [b"", PRICE[:-1], PRICE + b"\x00", b"\x04" + bytes(8), LIMIT, TRANSFER])
def test_another_instruction_is_no_compute_price(data: bytes) -> None:
    assert read_compute_unit_price(Instruction(1, b"", data)) is None


def test_a_compute_budget_has_no_accounts() -> None:
    assert read_compute_unit_limit(Instruction(1, b"\x00", LIMIT)) is None
    assert read_compute_unit_price(Instruction(1, b"\x00", PRICE)) is None


@pytest.mark.parametrize("data", [b"", TRANSFER[:-1], TRANSFER + b"\x00", b"\x03" + bytes(9), LIMIT, PRICE])
def test_another_instruction_is_no_transfer(data: bytes) -> None:
    assert read_transfer_checked(Instruction(1, b"\x00\x01\x02\x03", data)) is None


@pytest.mark.parametrize("accounts", [b"", b"\x00\x01\x02", b"\x00\x01\x02\x03\x04"])
def test_a_transfer_has_four_accounts(accounts: bytes) -> None:
    """With more, the signers of a multisignature wallet follow."""
    assert read_transfer_checked(Instruction(1, accounts, TRANSFER)) is None


@given(st.integers(0, 2**64 - 1), st.sampled_from([b"", b"\x02\x00\x00\x00"]))
def test_a_token_account_is_read_as_solders_writes_it(amount: int, extensions: bytes) -> None:
    for state in (TokenAccountState.Initialized, TokenAccountState.Frozen, TokenAccountState.Uninitialized):
        theirs = TheirTokenAccount(
            mint=Pubkey.from_string(DEVNET.address),
            owner=PAYER.pubkey(),
            amount=amount,
            delegate=None,
            state=state,
            is_native=None,
            delegated_amount=0,
            close_authority=None,
        )
        ours = read_token_account(bytes(theirs) + extensions)
        assert ours is not None
        assert (ours.mint, ours.owner, ours.amount) == (DEVNET.address, str(PAYER.pubkey()), amount)
        assert ours.is_usable is (state == TokenAccountState.Initialized)


@pytest.mark.parametrize(("amount", "allowance", "spends"), [(5, 3, 3), (5, 9, 5), (5, 0, 0), (0, 9, 0)])
def test_of_what_an_account_holds_a_wallet_pays_what_is_its_own_or_what_it_may(
    amount: int, allowance: int, spends: int
) -> None:
    theirs = TheirTokenAccount(
        mint=Pubkey.from_string(DEVNET.address),
        owner=PAYER.pubkey(),
        amount=amount,
        delegate=FEE_PAYER.pubkey(),
        state=TokenAccountState.Initialized,
        is_native=None,
        delegated_amount=allowance,
        close_authority=None,
    )
    ours = read_token_account(bytes(theirs))
    assert ours is not None
    assert ours.spender == (str(FEE_PAYER.pubkey()) if allowance else None)
    assert [ours.money_of(wallet) for wallet in (ours.owner, str(FEE_PAYER.pubkey()), DEVNET.address)] == [
        amount,
        spends,
        0,
    ]


@pytest.mark.parametrize("size", [0, 82, 164])
def test_other_bytes_are_no_token_account(size: int) -> None:
    assert read_token_account(bytes(size)) is None


HEAD = bytes(44) + bytes([6, 1]) + bytes(36)


def extended(*extensions: tuple[int, int], rest: bytes = b"") -> bytes:
    """A mint of Token-2022 with extensions of that kind and size."""
    written = b"".join(
        kind.to_bytes(2, "little") + size.to_bytes(2, "little") + b"\x07" * size for kind, size in extensions
    )
    return HEAD + bytes(83) + b"\x01" + written + rest


@pytest.mark.parametrize("decimals", [0, 6, 9])
def test_a_mint_is_read_as_solders_writes_it(decimals: int) -> None:
    mint = Mint(None, 10**15, decimals, is_initialized=True, freeze_authority=None)
    assert read_mint(bytes(mint)) == TokenMint(decimals, is_initialized=True, extensions=frozenset())


@pytest.mark.parametrize(
    ("data", "extensions"),
    [
        (extended(), set()),
        (extended((18, 64)), {18}),
        (extended((3, 32), (1, 108), (14, 64)), {1, 3, 14}),
        (extended((18, 64), rest=bytes(40)), {18}),
        (extended((18, 64), rest=b"\x01"), {18}),
        (extended((1, 108))[:-50], {1}),
    ],
)
def test_what_a_mint_does_besides_is_named_by_its_extensions(data: bytes, extensions: set[int]) -> None:
    assert read_mint(data) == TokenMint(6, is_initialized=True, extensions=frozenset(extensions))


@pytest.mark.parametrize("data", [b"", bytes(81), bytes(83), bytes(165), HEAD + bytes(83) + b"\x02"])
def test_other_bytes_are_no_mint(data: bytes) -> None:
    assert read_mint(data) is None


def test_recent_blockhashes_are_read_in_their_order() -> None:
    hashes = [bytes([number]) * 32 for number in range(1, 4)]
    listed = (3).to_bytes(8, "little") + b"".join(one + bytes(8) for one in hashes)
    assert read_recent_blockhashes(listed) == hashes
    assert read_recent_blockhashes(listed + bytes(5)) == hashes


@pytest.mark.parametrize(
    "data", [b"", bytes(8), (1).to_bytes(8, "little") + bytes(39), (151).to_bytes(8, "little") + bytes(151 * 40)]
)
def test_other_bytes_are_no_list_of_blockhashes(data: bytes) -> None:
    assert read_recent_blockhashes(data) is None
