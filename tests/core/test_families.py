"""What the families differ in beside their rules: both rows, and a token's members (specification 2.3, 2.5, 4.4)."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from tests.core.payments import AUTHORIZATION, BASE_SEPOLIA, PAYER, signed_payment
from tests.core.solana_payments import AMOUNT, DEVNET, FEE_PAYER, OTHER, PAY_TO, Draft, encoded, payment, usual
from tests.core.solana_payments import PAYER as SOLANA_PAYER
from tollkeeper.core.evm.encoding import ZERO_ADDRESS, address_of_key, checksum_address
from tollkeeper.core.families import FAMILIES, row_of
from tollkeeper.core.keys.keyring import fee_payer_seeds
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.solana.message import decode_transaction
from tollkeeper.core.solana.programs import MEMO_PROGRAM, NOBODYS, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from tollkeeper.core.solana.rules import SolanaAsset
from tollkeeper.core.x402.verification import EvmAsset, Reason
from tollkeeper.core.x402.version1 import SolanaPayload, payment_body

EVM, SOLANA = FAMILIES[Family.EVM], FAMILIES[Family.SOLANA]
SIGNER_KEY = bytes(range(1, 33))
Json = dict[str, Any]
DEVNET_NETWORK, SEPOLIA_NETWORK = NETWORKS["solana-devnet"], NETWORKS["base-sepolia"]


def test_every_family_has_a_row_and_every_network_a_family_with_one() -> None:
    assert set(FAMILIES) == set(Family) == {network.family for network in NETWORKS.values()}


def test_who_pays_for_settlements_follows_from_the_signing_key() -> None:
    assert EVM.fee_accounts(SIGNER_KEY) == (checksum_address(address_of_key(SIGNER_KEY)),)
    expected = tuple(str(Keypair.from_seed(seed).pubkey()) for seed in fee_payer_seeds(SIGNER_KEY))
    assert SOLANA.fee_accounts(SIGNER_KEY) == expected


def test_a_wallet_is_paid_itself_or_at_its_account_of_either_token_program() -> None:
    assert EVM.accounts_of(PAYER, BASE_SEPOLIA.address) == {PAYER}
    wallet, mint = Pubkey.from_string(str(OTHER.pubkey())), Pubkey.from_string(DEVNET.address)
    assert SOLANA.accounts_of(str(wallet), str(mint)) == {
        str(get_associated_token_address(wallet, mint, Pubkey.from_string(program)))
        for program in (TOKEN_PROGRAM, TOKEN_2022_PROGRAM)
    }


def test_nobody_has_the_keys_of_a_familys_nobodys() -> None:
    assert [row.nobodys for row in (EVM, SOLANA)] == [{ZERO_ADDRESS}, NOBODYS]


@pytest.mark.parametrize("wrong", ["", "0x12", "0x" + "g" * 64, "a" * 64, "not base58 0OIl", str(OTHER.pubkey())])
def test_what_names_no_transaction_is_none_of_any_family(wrong: str) -> None:
    assert [row.transaction_name(wrong) for row in FAMILIES.values()] == [None, None]


def test_a_transactions_name_is_of_one_family_and_kept_as_the_chain_spells_it() -> None:
    name = "0x" + "AB" * 32
    assert (EVM.transaction_name(name), SOLANA.transaction_name(name)) == (name.lower(), None)
    signature = str(SOLANA_PAYER.sign_message(b"any"))
    assert (EVM.transaction_name(signature), SOLANA.transaction_name(signature)) == (None, signature)


def test_a_payments_row_shows_its_payer_and_what_it_says_in_plain_words() -> None:
    signed = signed_payment()
    assert row_of(signed) is EVM
    assert (EVM.payer_of(signed), EVM.signed_value(signed)) == (checksum_address(PAYER), AUTHORIZATION.value)
    on_solana = payment(Draft(usual()).payload())
    assert row_of(on_solana) is SOLANA
    assert (SOLANA.payer_of(on_solana), SOLANA.signed_value(on_solana)) == (str(SOLANA_PAYER.pubkey()), AMOUNT)
    unreadable = payment(encoded(b"no transaction"))
    assert (SOLANA.payer_of(unreadable), SOLANA.signed_value(unreadable)) == (None, None)
    assert EVM.name_of(signed) == (PAYER, AUTHORIZATION.nonce)
    message = decode_transaction(on_solana.transacted.transaction).message
    assert SOLANA.name_of(on_solana) == (str(SOLANA_PAYER.pubkey()), message.hash)
    assert SOLANA.name_of(payment(SolanaPayload("AAAA"))) is None


def test_each_family_has_its_own_word_for_what_failed_and_explains_what_a_word_does_not() -> None:
    assert [row.failed_on_chain for row in FAMILIES.values()] == [
        Reason.TRANSACTION_FAILED,
        Reason.SVM_TRANSACTION_FAILED,
    ]
    assert all(row.shown_by_used <= row.shown_by_nodes for row in FAMILIES.values())
    assert [row.not_payable for row in FAMILIES.values()] == [Reason.RECIPIENT, Reason.SVM_NO_RECIPIENT]
    assert all(row.failed_on_chain in row.explained for row in FAMILIES.values())
    assert SOLANA.not_payable in SOLANA.explained


def test_a_history_item_shows_what_only_its_family_has() -> None:
    stored = payment_body(signed_payment())["payload"]
    assert EVM.history_terms(stored, "0xabc") == {
        "validAfter": str(AUTHORIZATION.valid_after),
        "validBefore": str(AUTHORIZATION.valid_before),
        "nonce": "0xabc",
    }
    draft = Draft(usual())
    stored = payment_body(payment(draft.payload()))["payload"]
    shown = SOLANA.history_terms(stored, "a hash")
    assert shown == {"messageHash": "a hash", "payerSignature": str(draft.transaction().signatures[1])}
    assert base64.b64decode(stored["transaction"])


def test_a_payload_is_made_of_the_members_that_its_family_has() -> None:
    assert set(payment_body(signed_payment())["payload"]) == set(EVM.payload_members)
    assert set(payment_body(payment(Draft(usual()).payload()))["payload"]) == set(SOLANA.payload_members)


def test_a_kind_of_a_facilitator_is_read_as_the_familys_token() -> None:
    assert EVM.asset.of_kind(SEPOLIA_NETWORK, {}, {}) == EvmAsset(
        SEPOLIA_NETWORK, SEPOLIA_NETWORK.usdc.address, SEPOLIA_NETWORK.usdc.eip712_name, "2"
    )
    told = EVM.asset.of_kind(SEPOLIA_NETWORK, {"address": "0xAB"}, {"name": "Coin", "version": "1"})
    assert told == EvmAsset(SEPOLIA_NETWORK, "0xab", "Coin", "1")
    unreadable: tuple[tuple[Json, Json], ...] = (({"address": 1}, {}), ({}, {"name": 1}), ({}, {"version": 2}))
    for shown, extra in unreadable:
        assert EVM.asset.of_kind(SEPOLIA_NETWORK, shown, extra) is None
    named: Json = {"feePayer": str(FEE_PAYER.pubkey())}
    assert SOLANA.asset.of_kind(DEVNET_NETWORK, {}, named) == SolanaAsset(
        DEVNET_NETWORK, DEVNET.address, TOKEN_PROGRAM, named["feePayer"]
    )
    of_2022 = SOLANA.asset.of_kind(DEVNET_NETWORK, {"tokenProgram": TOKEN_2022_PROGRAM}, named)
    assert isinstance(of_2022, SolanaAsset)
    assert of_2022.token_program == TOKEN_2022_PROGRAM
    unreadable = (({}, {}), ({"address": "0x12"}, named), ({"tokenProgram": MEMO_PROGRAM}, named))
    for shown, extra in unreadable:
        assert SOLANA.asset.of_kind(DEVNET_NETWORK, shown, extra) is None


def test_a_token_says_what_a_client_signs_with_and_whom_its_fee_is_charged_to() -> None:
    assert EVM.asset.of_kind(BASE_SEPOLIA.network, BASE_SEPOLIA.shown, BASE_SEPOLIA.extra) == BASE_SEPOLIA
    of_2022 = SolanaAsset(DEVNET_NETWORK, DEVNET.address, TOKEN_2022_PROGRAM, str(FEE_PAYER.pubkey()))
    assert SOLANA.asset.of_kind(DEVNET_NETWORK, of_2022.shown, of_2022.extra) == of_2022
    assert BASE_SEPOLIA.extra == {"name": BASE_SEPOLIA.name, "version": BASE_SEPOLIA.version}
    assert (BASE_SEPOLIA.charged_to("anybody"), BASE_SEPOLIA.fee_payers) == (BASE_SEPOLIA, frozenset())
    mint = DEVNET.charged_to("somebody")
    assert (mint.extra, mint.fee_payers) == ({"feePayer": "somebody"}, frozenset({"somebody"}))


def test_a_node_of_ours_knows_the_name_that_a_token_signs_with_and_not_who_pays_the_fee() -> None:
    own = EvmAsset(BASE_SEPOLIA.network, BASE_SEPOLIA.address, "Another Coin", "3")
    assert BASE_SEPOLIA.known_as(own) == own
    told = DEVNET.charged_to("the facilitator's")
    assert told.known_as(DEVNET) == told


def test_recipient_price_and_what_was_said_beside_the_payment_are_judged_by_the_token() -> None:
    account = str(get_associated_token_address(Pubkey.from_string(str(PAY_TO)), Pubkey.from_string(DEVNET.address)))
    assert (BASE_SEPOLIA.account_of(PAYER), DEVNET.account_of(str(PAY_TO))) == (PAYER, account)
    assert (BASE_SEPOLIA.has_accounts, DEVNET.has_accounts) == (False, True)
    assert [FAMILIES[one.network.family].has_contracts for one in (BASE_SEPOLIA, DEVNET)] == [True, False]
    assert BASE_SEPOLIA.recipient_check(PAYER, PAYER).ok
    assert BASE_SEPOLIA.recipient_check(PAYER, "0x").reason is Reason.RECIPIENT
    assert DEVNET.recipient_check(account, str(PAY_TO)).ok
    assert not DEVNET.recipient_check(str(PAY_TO), str(PAY_TO)).ok
    paid = [BASE_SEPOLIA.price_check(value, AMOUNT).ok for value in (AMOUNT - 1, AMOUNT, AMOUNT + 1)]
    exactly = [DEVNET.price_check(value, AMOUNT) for value in (AMOUNT - 1, AMOUNT, AMOUNT + 1)]
    assert paid == [False, True, True]
    assert [check.ok for check in exactly] == [False, True, False]
    assert [exactly[index].reason for index in (0, 2)] == [Reason.SVM_AMOUNT_LOW, Reason.SVM_AMOUNT]
    assert [BASE_SEPOLIA.stated_check(AMOUNT, stated).ok for stated in (AMOUNT - 1, AMOUNT)] == [False, True]
    assert [DEVNET.stated_check(AMOUNT, stated).ok for stated in (AMOUNT - 1, AMOUNT)] == [False, True]
