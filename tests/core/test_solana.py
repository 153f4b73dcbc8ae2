"""No transaction gets our fee payer's signature but the one that is named by the rules (A-27 to A-32)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair

from tests.core.payments import ASSETS, signed_payment
from tests.core.solana_payments import (
    AMOUNT,
    DEVNET,
    FEE_PAYER,
    OTHER,
    PAY_TO,
    PAYER,
    POLICY,
    REQUIREMENTS,
    Draft,
    account_of,
    compute_limit,
    compute_price,
    encoded,
    instruction,
    key,
    lighthouse,
    memo,
    payment,
    readable,
    signer,
    transfer,
    usual,
    writable,
)
from tollkeeper.core.api.errors import Code
from tollkeeper.core.solana.message import MalformedTransaction
from tollkeeper.core.solana.programs import (
    COMPUTE_BUDGET_PROGRAM,
    MEMO_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    TokenAccount,
)
from tollkeeper.core.solana.rules import (
    ALREADY_PROCESSED,
    BLOCKS_LEFT_MIN,
    SolanaAsset,
    SolanaFacts,
    chain_checks,
    payer_of,
    payment_key,
    read_transfer,
    requirement_checks,
    transaction_checks,
    transfer_of,
)
from tollkeeper.core.x402.verification import Check, OfNetwork, Reason, code_of_reason, form_checks
from tollkeeper.core.x402.version1 import PaymentKey, SolanaPayload

GOOD = Draft().payload()
TRANSFER = read_transfer(GOOD)
LAMPORTS_PER_CAP = POLICY.compute_limit_max * POLICY.compute_price_max_micro_lamports // 1_000_000


def refused(checks: Iterable[Check]) -> list[tuple[str, Reason]]:
    return [(check.name, check.reason) for check in checks if not check.ok]


def judged(payload: SolanaPayload, asset: SolanaAsset = DEVNET) -> list[tuple[str, Reason]]:
    return refused(transaction_checks(payload, asset, POLICY))


def drafted(*instructions: Instruction, **changes: Any) -> list[tuple[str, Reason]]:
    return judged(Draft(instructions, **changes).payload())


@pytest.mark.parametrize(
    "instructions",
    [
        usual(),
        usual(memo()),
        usual(lighthouse()),
        usual(memo(), lighthouse(), lighthouse()),
        usual(memo(), memo(), memo(), memo()),
        (compute_limit(400_000), compute_price(100_000), transfer()),
        (compute_limit(0), compute_price(0), transfer(1)),
        (compute_limit(), compute_price(), transfer(2**64 - 1)),
        (compute_limit(), compute_price(), transfer(source=account_of(OTHER.pubkey()))),
        usual(instruction(MEMO_PROGRAM, b"signed", [signer(PAYER.pubkey())])),
    ],
)
@pytest.mark.parametrize("is_legacy", [False, True])
def test_what_clients_send_keeps_every_rule(instructions: tuple[Instruction, ...], *, is_legacy: bool) -> None:
    assert drafted(*instructions, is_legacy=is_legacy) == []


def test_the_transfer_is_read_from_the_transaction() -> None:
    assert TRANSFER.fee_payer == str(FEE_PAYER.pubkey())
    assert TRANSFER.payer == str(PAYER.pubkey())
    assert TRANSFER.source == str(account_of(PAYER.pubkey()))
    assert TRANSFER.destination == str(account_of(PAY_TO))
    assert TRANSFER.value == AMOUNT
    assert payment_key(DEVNET, TRANSFER) == PaymentKey(
        "solana-devnet", DEVNET.address, TRANSFER.payer, TRANSFER.transaction.message.hash
    )


def test_nothing_is_read_from_a_transaction_without_a_transfer() -> None:
    with pytest.raises(MalformedTransaction):
        read_transfer(Draft((compute_limit(), compute_price(), memo())).payload())


def test_the_payer_is_shown_where_there_is_a_transfer() -> None:
    assert payer_of(GOOD) == str(PAYER.pubkey())
    for other in (SolanaPayload("x"), Draft((compute_limit(),)).payload(), Draft((memo(), memo(), memo())).payload()):
        assert payer_of(other) is None


def test_a_payment_has_the_form_of_its_networks_family() -> None:
    assets: dict[str, OfNetwork] = {**ASSETS, "solana-devnet": DEVNET}
    assert refused(form_checks(payment(GOOD), assets)) == []
    assert refused(form_checks(payment(GOOD, "base-sepolia"), assets)) == [("payload", Reason.PAYLOAD)]
    assert refused(form_checks(replace(signed_payment(), network="solana-devnet"), assets)) == [
        ("payload", Reason.PAYLOAD)
    ]
    assert refused(form_checks(payment(GOOD, "solana"), assets))[0] == ("network", Reason.NETWORK)


def test_the_caps_bound_what_a_buyer_can_make_us_pay() -> None:
    assert LAMPORTS_PER_CAP == 40_000


def test_what_is_no_transaction_is_refused_before_anything_in_it_has_a_meaning() -> None:
    assert judged(SolanaPayload("no transaction")) == [("transaction", Reason.SVM_TRANSACTION)]
    assert judged(encoded(bytes(100))) == [("transaction", Reason.SVM_TRANSACTION)]


SOME = Keypair.from_seed(b"\x31" * 32).pubkey()
BY_US = AccountMeta(FEE_PAYER.pubkey(), is_signer=True, is_writable=True)

REFUSED: dict[str, tuple[Callable[[], list[tuple[str, Reason]]], tuple[str, Reason]]] = {
    "two instructions": (
        lambda: drafted(compute_limit(), compute_price()),
        ("instructionCount", Reason.SVM_LENGTH),
    ),
    "eight instructions": (lambda: drafted(*usual(*[memo()] * 5)), ("instructionCount", Reason.SVM_LENGTH)),
    "a stranger pays the fee": (
        lambda: drafted(*usual(), fee_payer=OTHER.pubkey()),
        ("feePayer", Reason.SVM_FEE_PAYER),
    ),
    "the payer pays the fee": (lambda: drafted(*usual(), fee_payer=PAYER.pubkey()), ("feePayer", Reason.SVM_FEE_PAYER)),
    "we are the authority": (
        lambda: drafted(compute_limit(), compute_price(), transfer(payer=FEE_PAYER.pubkey())),
        ("feePayerIsolated", Reason.SVM_FEE_PAYER_USED),
    ),
    "we are named in a memo": (
        lambda: drafted(*usual(instruction(MEMO_PROGRAM, b"x", [BY_US]))),
        ("feePayerIsolated", Reason.SVM_FEE_PAYER_USED),
    ),
    "we are named in an assertion": (
        lambda: drafted(*usual(lighthouse(FEE_PAYER.pubkey()))),
        ("feePayerIsolated", Reason.SVM_FEE_PAYER_USED),
    ),
    "no compute limit": (
        lambda: drafted(compute_price(), compute_price(), transfer()),
        ("computeLimit", Reason.SVM_COMPUTE_LIMIT),
    ),
    "a compute limit of another program": (
        lambda: drafted(instruction(str(SOME), b"\x02" + bytes(4)), compute_price(), transfer()),
        ("computeLimit", Reason.SVM_COMPUTE_LIMIT),
    ),
    "a compute limit above the cap": (
        lambda: drafted(compute_limit(400_001), compute_price(), transfer()),
        ("computeLimitMax", Reason.SVM_COMPUTE_LIMIT_HIGH),
    ),
    "the largest compute limit": (
        lambda: drafted(compute_limit(2**32 - 1), compute_price(), transfer()),
        ("computeLimitMax", Reason.SVM_COMPUTE_LIMIT_HIGH),
    ),
    "no compute price": (
        lambda: drafted(compute_limit(), compute_limit(), transfer()),
        ("computePrice", Reason.SVM_COMPUTE_PRICE),
    ),
    "a compute price of another program": (
        lambda: drafted(compute_limit(), instruction(str(SOME), b"\x03" + bytes(8)), transfer()),
        ("computePrice", Reason.SVM_COMPUTE_PRICE),
    ),
    "a compute price above the cap": (
        lambda: drafted(compute_limit(), compute_price(100_001), transfer()),
        ("computePriceMax", Reason.SVM_COMPUTE_PRICE_HIGH),
    ),
    "the largest compute price": (
        lambda: drafted(compute_limit(), compute_price(2**64 - 1), transfer()),
        ("computePriceMax", Reason.SVM_COMPUTE_PRICE_HIGH),
    ),
    "budgets in the other order": (
        lambda: drafted(compute_price(), compute_limit(), transfer()),
        ("computeLimit", Reason.SVM_COMPUTE_LIMIT),
    ),
    "a heap frame": (
        lambda: drafted(instruction(COMPUTE_BUDGET_PROGRAM, b"\x01" + bytes(4)), compute_price(), transfer()),
        ("computeLimit", Reason.SVM_COMPUTE_LIMIT),
    ),
    "a second compute limit": (
        lambda: drafted(*usual(compute_limit(1_400_000))),
        ("afterTransfer", Reason.SVM_INSTRUCTIONS),
    ),
    "a second compute price": (
        lambda: drafted(*usual(compute_price(2**64 - 1))),
        ("afterTransfer", Reason.SVM_INSTRUCTIONS),
    ),
    "a second transfer": (lambda: drafted(*usual(transfer())), ("afterTransfer", Reason.SVM_INSTRUCTIONS)),
    "another program afterwards": (
        lambda: drafted(*usual(instruction(str(SOME), b""))),
        ("afterTransfer", Reason.SVM_INSTRUCTIONS),
    ),
    "a transfer of lamports": (
        lambda: drafted(
            compute_limit(),
            compute_price(),
            instruction(SYSTEM_PROGRAM, b"\x02\x00\x00\x00" + bytes(8), [signer(PAYER.pubkey()), writable(SOME)]),
        ),
        ("transfer", Reason.SVM_NOT_TRANSFER),
    ),
    "a transfer that does not name the mint": (
        lambda: drafted(
            compute_limit(),
            compute_price(),
            instruction(TOKEN_PROGRAM, b"\x03" + bytes(8), list(transfer().accounts)),
        ),
        ("transferChecked", Reason.SVM_NOT_SPL_TRANSFER),
    ),
    "a transfer of Token-2022": (
        lambda: drafted(compute_limit(), compute_price(), transfer(program=TOKEN_2022_PROGRAM)),
        ("transferChecked", Reason.SVM_NOT_SPL_TRANSFER),
    ),
    "a third signer": (
        lambda: drafted(*usual(instruction(MEMO_PROGRAM, b"x", [signer(OTHER.pubkey())])), signers=(PAYER, OTHER)),
        ("signers", Reason.SVM_SIGNERS),
    ),
    "another second signer": (
        lambda: drafted(
            compute_limit(),
            compute_price(),
            instruction(
                TOKEN_PROGRAM,
                bytes(transfer().data),
                [*list(transfer().accounts)[:3], readable(PAYER.pubkey())],
            ),
            instruction(MEMO_PROGRAM, b"x", [signer(OTHER.pubkey())]),
            signers=(OTHER,),
        ),
        ("authority", Reason.SVM_SIGNERS),
    ),
    "another mint": (
        lambda: drafted(compute_limit(), compute_price(), transfer(mint=str(SOME))),
        ("mint", Reason.SVM_MINT),
    ),
    "other decimals": (
        lambda: drafted(compute_limit(), compute_price(), transfer(decimals=9)),
        ("decimals", Reason.SVM_MINT),
    ),
    "nothing that is moved": (
        lambda: drafted(compute_limit(), compute_price(), transfer(0)),
        ("moved", Reason.SVM_AMOUNT_LOW),
    ),
    "an account that pays itself": (
        lambda: drafted(compute_limit(), compute_price(), transfer(source=account_of(PAY_TO))),
        ("destination", Reason.SVM_RECIPIENT),
    ),
    "no signature": (lambda: drafted(*usual(), signers=()), ("signature", Reason.SVM_SIGNATURE)),
    "a signature of ours in it": (
        lambda: drafted(*usual(), signers=(PAYER, FEE_PAYER)),
        ("feePayerSignature", Reason.SVM_TRANSACTION),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_transaction_is_refused_for(name: str) -> None:
    make, expected = REFUSED[name]
    assert make()[0] == expected


def test_lookup_tables_are_refused() -> None:
    raw = bytes(Draft().transaction())
    assert raw[-1] == 0
    with_table = raw[:-1] + b"\x01" + bytes(32) + b"\x00\x00"
    assert judged(encoded(with_table)) == [("lookupTables", Reason.SVM_TRANSACTION)]


def with_a_table(raw: bytes) -> SolanaPayload:
    """The transaction, which must have none, with a lookup table behind it, so that positions may lie there."""
    assert raw[-1] == 0
    return encoded(raw[:-1] + b"\x01" + bytes(32) + b"\x00\x00")


def test_a_program_that_only_a_lookup_table_names_is_read_by_nobody() -> None:
    """Who has every check explained has requirements judged, too, of a transaction that is refused already."""
    raw = bytes(Draft(usual(memo(b"order 7"))).transaction())
    at = raw.rindex(b"\x00\x07order 7") - 1
    beyond = with_a_table(raw[:at] + b"\xc8" + raw[at + 1 :])
    assert judged(beyond) == [("lookupTables", Reason.SVM_TRANSACTION)]
    asked = replace(REQUIREMENTS, extra={"memo": "order 7"})
    found = refused(requirement_checks(read_transfer(beyond), asked, DEVNET))
    assert found == [("memoCount", Reason.SVM_MEMO_COUNT), ("memo", Reason.SVM_MEMO)]


@given(at=st.integers(0, 400), change=st.integers(1, 255), is_tabled=st.booleans())
def test_no_transaction_makes_the_rules_fail_otherwise(at: int, change: int, *, is_tabled: bool) -> None:
    raw = bytearray(bytes(Draft(usual(memo(b"order 7"))).transaction()))
    raw[129 + at % (len(raw) - 130)] ^= change
    payload = with_a_table(bytes(raw)) if is_tabled else encoded(bytes(raw))
    judged(payload)
    offered = transfer_of(payload)
    if offered is not None:
        list(requirement_checks(offered, replace(REQUIREMENTS, extra={"memo": "order 7"}), DEVNET))


@given(st.integers(0, 511))
def test_a_signature_with_any_bit_changed_is_refused(bit: int) -> None:
    raw = bytearray(bytes(Draft().transaction()))
    raw[65 + bit // 8] ^= 1 << bit % 8
    assert judged(encoded(bytes(raw))) == [("signature", Reason.SVM_SIGNATURE)]


def test_token_2022_is_taken_where_the_asset_is_of_it() -> None:
    asset = replace(DEVNET, token_program=TOKEN_2022_PROGRAM)
    newer = Draft((compute_limit(), compute_price(), transfer(program=TOKEN_2022_PROGRAM))).payload()
    assert judged(newer, asset) == []
    assert judged(GOOD, asset) == [("transferChecked", Reason.SVM_NOT_2022_TRANSFER)]
    assert refused(requirement_checks(read_transfer(newer), REQUIREMENTS, asset)) == []


def required(**changes: Any) -> list[tuple[str, Reason]]:
    return refused(requirement_checks(TRANSFER, replace(REQUIREMENTS, **changes), DEVNET))


def test_requirements_that_the_transaction_meets_pass() -> None:
    assert required() == []
    assert required(extra={}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"asset": str(SOME)}, ("requirements.asset", Reason.REQUIREMENTS)),
        ({"extra": {"feePayer": str(SOME)}}, ("requirements.feePayer", Reason.SVM_FEE_PAYER_MISMATCH)),
        ({"pay_to": str(SOME)}, ("recipient", Reason.SVM_RECIPIENT)),
        ({"pay_to": str(account_of(PAY_TO))}, ("recipient", Reason.SVM_RECIPIENT)),
        ({"pay_to": "0x209693bc6afc0c5328ba36faf03c514ef312287c"}, ("recipient", Reason.REQUIREMENTS)),
        ({"amount": AMOUNT + 1}, ("value", Reason.SVM_AMOUNT_LOW)),
        ({"amount": AMOUNT - 1}, ("value", Reason.SVM_AMOUNT)),
        ({"extra": {"memo": "order 7"}}, ("memoCount", Reason.SVM_MEMO_COUNT)),
    ],
)
def test_requirements_that_the_transaction_does_not_meet_are_named(
    changes: dict[str, Any], expected: tuple[str, Reason]
) -> None:
    assert required(**changes)[0] == expected


@pytest.mark.parametrize(
    ("memos", "expected"),
    [
        ((memo(b"order 7"),), []),
        ((memo(b"order 7"), lighthouse()), []),
        ((memo(b"order 8"),), [("memo", Reason.SVM_MEMO)]),
        ((memo(b"order 7"), memo(b"order 7")), [("memoCount", Reason.SVM_MEMO_COUNT)]),
    ],
)
def test_a_memo_that_the_seller_asks_for_is_there_once(
    memos: tuple[Instruction, ...], expected: list[tuple[str, Reason]]
) -> None:
    paid = read_transfer(Draft(usual(*memos)).payload())
    asked = replace(REQUIREMENTS, extra={"memo": "order 7"})
    assert refused(requirement_checks(paid, asked, DEVNET)) == expected


def held(amount: int = AMOUNT, *, mint: str = DEVNET.address, is_usable: bool = True) -> TokenAccount:
    return TokenAccount(mint, str(PAYER.pubkey()), amount, is_usable)


GOOD_FACTS = SolanaFacts(held(), replace(held(0), owner=PAY_TO), is_blockhash_valid=True, error=None)


def test_a_chain_that_would_take_the_transaction_passes() -> None:
    assert refused(chain_checks(TRANSFER, DEVNET, GOOD_FACTS)) == []
    assert refused(chain_checks(TRANSFER, DEVNET, replace(GOOD_FACTS, blocks_left=BLOCKS_LEFT_MIN))) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"error": ALREADY_PROCESSED}, Reason.DUPLICATE),
        ({"destination": None}, Reason.SVM_NO_RECIPIENT),
        ({"destination": held(mint=str(SOME))}, Reason.SVM_NO_RECIPIENT),
        ({"destination": held()}, Reason.SVM_NO_RECIPIENT),  # it is the payer's by now
        ({"destination": held(is_usable=False)}, Reason.SVM_NO_RECIPIENT),
        ({"source": None}, Reason.SVM_NO_SENDER),
        ({"source": held(mint=str(SOME))}, Reason.SVM_NO_SENDER),
        ({"source": held(is_usable=False)}, Reason.SVM_NO_SENDER),
        ({"source": held(AMOUNT - 1)}, Reason.FUNDS),
        ({"is_blockhash_valid": False}, Reason.SVM_EXPIRED),
        ({"blocks_left": BLOCKS_LEFT_MIN - 1, "error": None}, Reason.SVM_EXPIRED),
        ({"error": "InstructionError"}, Reason.SVM_SIMULATION),
    ],
)
def test_what_the_chain_refuses_is_named_by_its_cause(changes: dict[str, Any], reason: Reason) -> None:
    facts = replace(GOOD_FACTS, **{"error": "InstructionError", **changes})
    assert refused(chain_checks(TRANSFER, DEVNET, facts))[0][1] is reason


def test_reasons_say_the_codes_of_the_specification() -> None:
    assert code_of_reason("invalid_exact_svm_network_mismatch") is Code.INVALID_NETWORK
    assert code_of_reason("network_mismatch") is Code.INVALID_NETWORK
    assert code_of_reason(Reason.SVM_AMOUNT_LOW) is Code.INSUFFICIENT_AMOUNT
    assert code_of_reason(Reason.SVM_SIGNATURE) is Code.INVALID_SIGNATURE
    assert code_of_reason(Reason.SVM_EXPIRED) is Code.PAYMENT_EXPIRED
    assert code_of_reason(Reason.SVM_AMOUNT) is Code.PAYMENT_INVALID


def test_accounts_are_named_as_wallets_show_them() -> None:
    assert key(TRANSFER.payer) == PAYER.pubkey()
