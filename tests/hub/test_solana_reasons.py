"""Every refusal on Solana has a reference facilitator's word for it, to the letter (contract 5.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from solders.keypair import Keypair

from tests.chains.solana_node import BUYER, FEE_PAYER, WALLETS, drafted, paid_for_by, paying
from tests.core.solana_payments import (
    OTHER,
    account_of,
    compute_limit,
    compute_price,
    encoded,
    instruction,
    memo,
    readable,
    signer,
    transfer,
)
from tests.hub.solana_hub import SolanaHub, body_of, run_solana_hub
from tollkeeper.core.solana.programs import MEMO_PROGRAM, SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from tollkeeper.core.x402.verification import Reason
from tollkeeper.sandbox.solana.chain import RECENT_SLOTS

OWNER: Final = WALLETS.owner.address
NOBODY: Final = str(Keypair().pubkey())
# The strings of the closed list of version 1 that these rules have a use for, and of the newer reference facilitators
# where that list has none.
OF_VERSION_1: Final = frozenset(
    "invalid_exact_svm_payload_transaction" + rest
    for rest in (
        "",
        "_amount_mismatch",
        "_fee_payer_included_in_instruction_accounts",
        "_instruction_not_spl_token_transfer_checked",
        "_instruction_not_token_2022_transfer_checked",
        "_instructions",
        "_instructions_compute_limit_instruction",
        "_instructions_compute_price_instruction",
        "_instructions_compute_price_instruction_too_high",
        "_instructions_length",
        "_not_a_transfer_instruction",
        "_receiver_ata_not_found",
        "_sender_ata_not_found",
        "_simulation_failed",
        "_transfer_to_incorrect_ata",
    )
) | {"settle_exact_svm_block_height_exceeded"}
OF_THE_NEWER: Final = frozenset(
    {
        "fee_payer_not_managed_by_facilitator",
        "invalid_exact_svm_fee_payer_mismatch",
        "invalid_exact_svm_payload_amount_insufficient",
        "invalid_exact_svm_payload_excessive_signers",
        "invalid_exact_svm_payload_memo_count",
        "invalid_exact_svm_payload_memo_mismatch",
        "invalid_exact_svm_payload_mint_mismatch",
        "invalid_exact_svm_payload_signature_invalid",
        "invalid_exact_svm_payload_transaction_instructions_compute_limit_instruction_too_high",
        "invalid_exact_svm_transaction_failed",
    }
)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


def moved(amount: int = 10_000, **changes: Any) -> Any:
    return transfer(amount, **{"payer": BUYER.pubkey(), "pay_to": OWNER, **changes})


def made(*instructions: Any, **requirements: Any) -> Callable[[SolanaHub], dict[str, Any]]:
    """A payment of exactly these instructions."""
    return lambda world: world.asking(drafted(world.node, *instructions), **requirements)


def with_limits(*instructions: Any, **requirements: Any) -> Callable[[SolanaHub], dict[str, Any]]:
    """One with honest limits before them."""
    return made(compute_limit(), compute_price(), *instructions, **requirements)


def by_a_stranger(world: SolanaHub) -> dict[str, Any]:
    return world.asking(paying(world.node, 10_000, buyer=Keypair()))


def too_old(world: SolanaHub) -> dict[str, Any]:
    body = world.payment()
    world.node.chain.next_slot(RECENT_SLOTS + 1)
    return body


REFUSED: Final[dict[str, list[Callable[[SolanaHub], dict[str, Any]]]]] = {
    "invalid_exact_svm_payload_transaction": [lambda _world: body_of(encoded(b"no transaction"), 10_000)],
    "invalid_exact_svm_payload_transaction_instructions_length": [
        made(compute_limit(), moved()),
        with_limits(moved(), *[memo()] * 5),
    ],
    "invalid_exact_svm_payload_transaction_instructions": [with_limits(moved(), moved(1))],
    "fee_payer_not_managed_by_facilitator": [
        lambda world: world.asking(paid_for_by(paying(world.node, 10_000), OTHER), extra={})
    ],
    "invalid_exact_svm_fee_payer_mismatch": [
        lambda world: world.asking(paying(world.node, 10_000), extra={"feePayer": NOBODY})
    ],
    "invalid_exact_svm_payload_transaction_fee_payer_included_in_instruction_accounts": [
        with_limits(moved(), instruction(MEMO_PROGRAM, b"note", [readable(FEE_PAYER.pubkey())])),
        with_limits(moved(payer=FEE_PAYER.pubkey())),
    ],
    "invalid_exact_svm_payload_transaction_instructions_compute_limit_instruction": [
        made(compute_price(), compute_price(), moved())
    ],
    "invalid_exact_svm_payload_transaction_instructions_compute_limit_instruction_too_high": [
        made(compute_limit(400_001), compute_price(), moved())
    ],
    "invalid_exact_svm_payload_transaction_instructions_compute_price_instruction": [
        made(compute_limit(), compute_limit(), moved())
    ],
    "invalid_exact_svm_payload_transaction_instructions_compute_price_instruction_too_high": [
        made(compute_limit(), compute_price(100_001), moved())
    ],
    "invalid_exact_svm_payload_transaction_not_a_transfer_instruction": [
        with_limits(instruction(SYSTEM_PROGRAM, b"\x02", [signer(BUYER.pubkey())]))
    ],
    "invalid_exact_svm_payload_transaction_instruction_not_spl_token_transfer_checked": [
        with_limits(instruction(TOKEN_PROGRAM, b"\x03" + bytes(8), [signer(BUYER.pubkey())])),
        with_limits(moved(program=TOKEN_2022_PROGRAM)),
    ],
    "invalid_exact_svm_payload_excessive_signers": [
        with_limits(moved(), instruction(MEMO_PROGRAM, b"note", [signer(OTHER.pubkey())]))
    ],
    "invalid_exact_svm_payload_signature_invalid": [
        lambda world: world.asking(replace(paying(world.node, 10_000), signers=()))
    ],
    "invalid_exact_svm_payload_mint_mismatch": [with_limits(moved(mint=NOBODY)), with_limits(moved(decimals=9))],
    "invalid_exact_svm_payload_transaction_transfer_to_incorrect_ata": [
        with_limits(moved(destination=account_of(NOBODY)))
    ],
    "invalid_exact_svm_payload_transaction_amount_mismatch": [with_limits(moved(10_001))],
    "invalid_exact_svm_payload_amount_insufficient": [with_limits(moved(9_999))],
    "invalid_exact_svm_payload_memo_count": [with_limits(moved(), extra={"memo": "order 7"})],
    "invalid_exact_svm_payload_memo_mismatch": [with_limits(moved(), memo(b"order 8"), extra={"memo": "order 7"})],
    "invalid_exact_svm_payload_transaction_receiver_ata_not_found": [with_limits(moved(pay_to=NOBODY), payTo=NOBODY)],
    "invalid_exact_svm_payload_transaction_sender_ata_not_found": [by_a_stranger],
    "invalid_exact_svm_payload_transaction_simulation_failed": [made(compute_limit(10), compute_price(), moved())],
    "settle_exact_svm_block_height_exceeded": [too_old],
}
# Each has a test of its own: it takes a chain, or another token program, to come to them.
ELSEWHERE: Final = {
    "invalid_exact_svm_transaction_failed",
    "invalid_exact_svm_payload_transaction_instruction_not_token_2022_transfer_checked",
}


@pytest.mark.parametrize("word", REFUSED)
async def test_verify_and_settle_say_it_in_the_references_words(world: SolanaHub, word: str) -> None:
    for make in REFUSED[word]:
        body = make(world)
        assert (await world.verify(body)).reason == word
        settled = await world.settle(body)
        assert (settled.status, settled.reason, settled.body["transaction"]) == (200, word, "")
        assert world.node.chain.executed == {}


async def test_a_token_of_the_other_program_is_told_by_the_same_words(tmp_path: Path) -> None:
    async with run_solana_hub(tmp_path, token_program=TOKEN_2022_PROGRAM, is_token_2022=True) as world:
        word = "invalid_exact_svm_payload_transaction_instruction_not_token_2022_transfer_checked"
        assert (await world.verify(world.payment())).reason == word


def test_no_word_is_our_own_and_each_is_tried() -> None:
    words = {reason.value for reason in Reason if reason.name.startswith("SVM_")}
    assert words == {*REFUSED, *ELSEWHERE}
    assert words == OF_VERSION_1 | OF_THE_NEWER
