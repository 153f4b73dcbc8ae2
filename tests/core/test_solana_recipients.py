"""Which addresses are no wallet's, and which of them nobody can ever pay (contract 3.1)."""

from __future__ import annotations

from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address
from solders.token.state import Mint, TokenAccountState
from solders.token.state import TokenAccount as TheirTokenAccount

from tests.core.solana_payments import DEVNET, PAYER
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.programs import (
    MULTISIG_SIZE_BYTES,
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    Account,
    no_wallet,
    read_token_account,
)
from tollkeeper.core.x402.verification import EvmAsset

WALLET = str(PAYER.pubkey())
MINT = Pubkey.from_string(DEVNET.address)
DERIVED = str(get_associated_token_address(PAYER.pubkey(), MINT))
STRANGER = Keypair.from_seed(b"\x55" * 32).pubkey()
FIELDS: dict[str, Any] = {
    "mint": MINT,
    "owner": PAYER.pubkey(),
    "amount": 1,
    "delegate": None,
    "state": TokenAccountState.Initialized,
    "is_native": None,
    "delegated_amount": 0,
    "close_authority": None,
}
HELD = bytes(TheirTokenAccount(**FIELDS))
IS_ACCOUNT = b"\x02"  # behind a token account's bytes, where extensions of Token-2022 follow
MINTED = bytes(Mint(None, 1, 6, is_initialized=True, freeze_authority=None))


@pytest.mark.parametrize(
    ("change", "wallet", "why_not"),
    [
        ({}, WALLET, ""),
        ({"owner": STRANGER}, str(STRANGER), f"it was signed away to {STRANGER}"),
        ({"mint": STRANGER}, None, "it cannot be paid"),
        ({"state": TokenAccountState.Frozen}, None, "it cannot be paid"),
        ({"state": TokenAccountState.Uninitialized}, None, "it cannot be paid"),
    ],
)
def test_who_gets_what_is_paid_to_an_account(change: dict[str, Any], wallet: str | None, why_not: str) -> None:
    holder = DEVNET.holder(DERIVED, read_token_account(bytes(TheirTokenAccount(**{**FIELDS, **change}))))
    assert (holder.wallet, holder.is_its_own, holder.why_not) == (wallet, not why_not, why_not)
    assert DEVNET.holder(DERIVED, None).wallet is None


@pytest.mark.parametrize("address", [WALLET, *(str(Keypair.from_seed(bytes([n] * 32)).pubkey()) for n in range(8))])
def test_a_key_is_a_wallet_whether_anything_lies_there_or_not(address: str) -> None:
    assert no_wallet(address) is None
    assert no_wallet(address, Account(SYSTEM_PROGRAM, is_executable=False, data=b"")) is None


@pytest.mark.parametrize("there", [None, Account(SYSTEM_PROGRAM, is_executable=False, data=b"")])
def test_what_a_program_derived_may_hold_money_and_is_no_wallet(there: Account | None) -> None:
    found = no_wallet(DERIVED, there)
    assert found is not None
    assert "no key signs for it" in found.why
    assert not found.is_never_paid


def test_an_account_of_another_program_is_no_wallet() -> None:
    found = no_wallet(WALLET, Account(DERIVED, is_executable=False, data=b"1"))
    assert found is not None
    assert DERIVED in found.why
    assert not found.is_never_paid


@pytest.mark.parametrize("program", [TOKEN_PROGRAM, TOKEN_2022_PROGRAM])
@pytest.mark.parametrize(
    ("data", "words"),
    [(HELD, WALLET), (HELD + IS_ACCOUNT + bytes(20), WALLET), (MINTED, "a token's mint")],
)
def test_a_token_account_and_a_mint_are_never_paid(program: str, data: bytes, words: str) -> None:
    for address in (DERIVED, WALLET):
        found = no_wallet(address, Account(program, is_executable=False, data=data))
        assert found is not None
        assert words in found.why
        assert found.is_never_paid


def test_a_program_is_never_paid() -> None:
    found = no_wallet(WALLET, Account(DERIVED, is_executable=True, data=b""))
    assert found is not None
    assert (found.why, found.is_never_paid) == ("it is a program", True)


@pytest.mark.parametrize("data", [b"", b"short", bytes(len(MINTED)), bytes(MULTISIG_SIZE_BYTES)])
def test_what_else_belongs_to_a_token_program_may_have_signers(data: bytes) -> None:
    """Several signers' account; a mint that is none yet."""
    found = no_wallet(WALLET, Account(TOKEN_PROGRAM, is_executable=False, data=data))
    assert found is not None
    assert not found.is_never_paid


def test_each_family_says_it_of_an_address_without_a_node() -> None:
    assert DEVNET.no_wallet(WALLET) == ""
    assert "off the curve" in DEVNET.no_wallet(DERIVED)
    evm = NETWORKS["base-sepolia"]
    assert EvmAsset(evm, evm.usdc.address, "USD Coin", "2").no_wallet("0x" + "11" * 20) == ""
