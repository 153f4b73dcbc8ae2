"""Transactions are read as solders reads them, in one spelling only (specification 2.3; A-03, A-30)."""

from __future__ import annotations

import base64
import hashlib
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from tests.core.solana_payments import (
    BLOCKHASH,
    FEE_PAYER,
    Draft,
    instruction,
    readable,
    signer,
    usual,
    writable,
)
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.message import (
    MalformedTransaction,
    decode_transaction,
    encode_compact,
    read_message,
    read_transaction,
)
from tollkeeper.core.solana.programs import LIGHTHOUSE_PROGRAM

RAW = bytes(Draft().transaction())
MESSAGE = RAW[1 + 2 * 64 :]
HEADER_AT = 1 + 2 * 64 + 1  # behind the signatures and the version
KEYS = [Keypair.from_seed(bytes([number]) * 32).pubkey() for number in range(1, 9)]

metas = st.sampled_from(KEYS).flatmap(lambda key: st.sampled_from([readable(key), writable(key), signer(key)]))
instructions = st.lists(
    st.builds(instruction, st.sampled_from(KEYS).map(str), st.binary(max_size=40), st.lists(metas, max_size=6)),
    min_size=1,
    max_size=6,
)


@given(used=instructions, is_legacy=st.booleans(), blockhash=st.binary(min_size=32, max_size=32))
def test_every_transaction_of_solders_is_read_as_it_was_written(
    *, used: list[Instruction], is_legacy: bool, blockhash: bytes
) -> None:
    theirs = Draft(tuple(used), is_legacy=is_legacy, blockhash=blockhash).transaction()
    raw = bytes(theirs)
    ours = decode_transaction(base64.b64encode(raw).decode())
    header, message = theirs.message.header, ours.message
    assert ours.encode() == raw
    assert message.version == (None if is_legacy else 0)
    assert [encode_key(key) for key in message.accounts] == [str(key) for key in theirs.message.account_keys]
    assert (message.required_signatures, message.readonly_signed, message.readonly_unsigned) == (
        header.num_required_signatures,
        header.num_readonly_signed_accounts,
        header.num_readonly_unsigned_accounts,
    )
    assert message.recent_blockhash == blockhash
    assert [(one.program, bytes(one.accounts), bytes(one.data)) for one in message.instructions] == [
        (one.program_id_index, bytes(one.accounts), bytes(one.data)) for one in theirs.message.instructions
    ]
    assert ours.signatures == tuple(map(bytes, theirs.signatures))
    assert message.hash == hashlib.sha256(message.raw).hexdigest()


def test_a_signature_is_put_where_it_belongs() -> None:
    ours = read_transaction(RAW)
    theirs = VersionedTransaction.from_bytes(ours.with_signature(0, b"\x05" * 64).encode())
    assert theirs.signatures[0] == Signature(b"\x05" * 64)
    assert bytes(theirs.signatures[1]) == ours.signatures[1]


@given(st.integers(0, 0xFFFF))
def test_a_compact_number_has_one_spelling(value: int) -> None:
    spelled = encode_compact(value)
    assert len(spelled) == (1 if value < 0x80 else 2 if value < 0x4000 else 3)
    raw = b"\x01\x00\x00" + spelled + bytes(32 * value) + bytes(32) + b"\x00"
    if 2 <= value < 0x100:
        with pytest.raises(MalformedTransaction, match="named twice"):  # read to the end, all keys being zero
            read_message(raw)
    longer = spelled[:-1] + bytes([spelled[-1] | 0x80]) + b"\x00"
    with pytest.raises(MalformedTransaction):
        read_message(b"\x01\x00\x00" + longer + bytes(32 * min(value, 300)) + bytes(32) + b"\x00")


@pytest.mark.parametrize("spelling", [b"\xff\xff\x04", b"\xff\xff\xff\x01", b"\x80\x80\x04", b"\x80\x80\x80\x01"])
def test_a_compact_number_beyond_sixteen_bits_is_refused(spelling: bytes) -> None:
    with pytest.raises(MalformedTransaction, match="shortest form"):
        read_message(b"\x01\x00\x00" + spelling + bytes(2000))


@pytest.mark.parametrize("value", [-1, 0x10000])
def test_no_compact_number_is_written_beyond_sixteen_bits(value: int) -> None:
    with pytest.raises(ValueError, match="compact"):
        encode_compact(value)


@pytest.mark.parametrize("size", range(len(RAW)))
def test_a_transaction_that_ends_early_is_refused(size: int) -> None:
    with pytest.raises(MalformedTransaction):
        read_transaction(RAW[:size])


@given(st.binary(min_size=1, max_size=50))
def test_bytes_behind_a_transaction_are_refused(more: bytes) -> None:
    with pytest.raises(MalformedTransaction):
        read_transaction(RAW + more)


@given(st.integers(0, len(RAW) - 1), st.integers(1, 255))
def test_what_we_read_with_any_byte_changed_is_what_solders_reads(at: int, change: int) -> None:
    raw = bytearray(RAW)
    raw[at] ^= change
    try:
        ours = read_transaction(bytes(raw))
    except MalformedTransaction:
        return
    theirs = VersionedTransaction.from_bytes(bytes(raw))
    theirs.sanitize()
    assert bytes(theirs) == ours.encode() == bytes(raw)
    assert [bytes(key) for key in theirs.message.account_keys] == list(ours.message.accounts)


@given(st.binary(max_size=1300))
def test_no_bytes_make_the_reader_fail_otherwise(raw: bytes) -> None:
    with suppress(MalformedTransaction):
        read_transaction(raw)


def test_a_number_of_accounts_that_cannot_be_there_costs_next_to_nothing() -> None:
    """Anybody can send any such number: none of them may stay in memory, or take time, for what it promises."""
    tracemalloc.start()
    try:
        for count in range(0xFFFF - 50, 0xFFFF):
            with pytest.raises(MalformedTransaction, match="ends early"):
                read_message(b"\x80\x01\x00\x00" + encode_compact(count) + bytes(1000))
        kept_bytes, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 100_000
    assert most_bytes < 1_000_000


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (bytes([*RAW[:HEADER_AT], 0, *RAW[HEADER_AT + 1 :]]), "no account pays"),
        (bytes([*RAW[:HEADER_AT], 2, 2, *RAW[HEADER_AT + 2 :]]), "no account pays"),
        (bytes([*RAW[:HEADER_AT], 2, 1, 200, *RAW[HEADER_AT + 3 :]]), "more signers"),
        (bytes([*RAW[:HEADER_AT], 3, *RAW[HEADER_AT + 1 :]]), "number of signatures"),
        (RAW[: HEADER_AT - 1] + b"\x81" + RAW[HEADER_AT:], "version 1"),
        (RAW[: HEADER_AT - 1] + b"\xff" + RAW[HEADER_AT:], "version 127"),
        (bytes(1233), "at most 1232 bytes"),
        (RAW.replace(bytes(FEE_PAYER.pubkey()), RAW[HEADER_AT + 36 : HEADER_AT + 68]), "named twice"),
    ],
)
def test_a_transaction_that_no_validator_takes_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(MalformedTransaction, match=reason):
        read_transaction(raw)


@pytest.mark.parametrize("part", ["program", "program 0", "accounts"])
def test_an_instruction_cannot_name_what_is_not_there(part: str) -> None:
    message = read_message(MESSAGE)
    used = message.instructions[2]
    at = MESSAGE.rindex(bytes([used.program, 4, *used.accounts]))
    raw = bytearray(MESSAGE)
    if part == "accounts":
        raw[at + 2] = len(message.accounts)
    else:
        raw[at] = 0 if part == "program 0" else len(message.accounts)
    with pytest.raises(MalformedTransaction, match="not there"):
        read_message(bytes(raw))


def test_lookup_tables_are_counted_and_not_followed() -> None:
    table = AddressLookupTableAccount(KEYS[0], [KEYS[1], KEYS[2]])
    used = [*usual(), instruction(str(KEYS[3]), b"", [writable(KEYS[1]), readable(KEYS[2])])]
    message = MessageV0.try_compile(FEE_PAYER.pubkey(), used, [table], Hash.from_bytes(BLOCKHASH))
    ours = read_message(b"\x80" + bytes(message))
    assert ours.lookup_tables == 1
    assert Pubkey(ours.accounts[0]) == FEE_PAYER.pubkey()
    with pytest.raises(MalformedTransaction, match="ends early"):
        read_message(ours.raw[:-1])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "=",
        lambda text: text.rstrip("="),
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text.replace("A", "-", 1),
        lambda text: text[:10] + "\n" + text[10:],
        lambda text: "\u00e9" + text,
        lambda text: text[:0],
    ],
)
def test_another_spelling_of_the_same_bytes_is_refused(change: object) -> None:
    text = base64.b64encode(RAW + b"\x00").decode()
    assert text.endswith("=") or len(RAW) % 3 == 2
    with pytest.raises(MalformedTransaction, match="base64"):
        decode_transaction(change(text))  # type: ignore[operator]  # one of the functions above


def test_bits_behind_the_last_byte_are_refused() -> None:
    padded = base64.b64encode(bytes(31)).decode()
    assert padded.endswith("A==")
    with pytest.raises(MalformedTransaction, match="base64"):
        decode_transaction(padded.replace("A==", "B=="))


def test_the_message_hash_ignores_signatures() -> None:
    other = replace(Draft(), signers=())
    assert read_transaction(bytes(other.transaction())).message.hash == read_transaction(RAW).message.hash


def test_an_instruction_may_have_more_accounts_and_data_than_one_byte_counts() -> None:
    many = instruction(LIGHTHOUSE_PROGRAM, b"many" * 50, [readable(FEE_PAYER.pubkey())] * 130)
    read = decode_transaction(Draft(usual(many)).payload().transaction).message.instructions[3]
    assert (len(read.accounts), read.data) == (130, b"many" * 50)
