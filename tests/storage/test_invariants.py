"""The invariants as SQL: silent on sound books, and each of them speaks where it is broken (security 5)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.books import BOUNDS, differences_of
from tests.engines import IS_POSTGRESQL, change, rows_of
from tests.storage.test_ledger import by_header, spend_together
from tests.storage.test_purchases import NOW_MS, TRUST, Shop, key
from tollkeeper.api import clock_ms
from tollkeeper.core.purchases import Spend
from tollkeeper.core.settlement.states import Proof, SettlementKind, State
from tollkeeper.storage.books.invariants import inspect
from tollkeeper.storage.engine.database import StorageError, load_queries
from tollkeeper.storage.hub.claims import ClaimBounds, NewSettlement, SettlementRequest, claim_and_sign
from tollkeeper.storage.hub.settlements import Move, Settlement, move
from tollkeeper.storage.hub.transactions import GasBudget, open_lane
from tollkeeper.storage.ledger.purchase_rows import SpendResult
from tollkeeper.storage.urls import open_database, open_snapshot

SIGNER = "0x" + "aa" * 20
PAYMENT = json.dumps({"payload": {"authorization": {"validBefore": str(NOW_MS // 1000 + 60)}}})


def new_settlement(number: int) -> NewSettlement:
    return NewSettlement(
        id=f"s-{number}",
        key=key(number),
        kind=SettlementKind.PURCHASE,
        pay_to="0x" + "ab" * 20,
        value=10_000,
        payment=PAYMENT,
        requirements="{}",
        requirements_hash="r",
        confirm=True,
        purchase_data='{"purchaseId":"p"}',
        signer=SIGNER,
        holder="p-1",
        now_ms=NOW_MS,
    )


class Books:
    """Sound books of a shop and of a hub in one file: sales 1 to 3, of which 2 is deleted's and 3 is trusted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = open_database(str(path))
        self.shop = Shop(self.database)

    async def settle(self, number: int) -> Settlement:
        return await self.claim(new_settlement(number))

    async def claim(self, new: NewSettlement) -> Settlement:
        network, large = new.key.network, 10**9
        budget, bounds = GasBudget(network, large, large, NOW_MS), ClaimBounds(network, large, large)
        (signed,) = await self.database.run(
            claim_and_sign([SettlementRequest(new)], lambda nonce, _won: (b"raw", f"0x{nonce:064x}"), budget, bounds)
        )
        assert signed.settlement is not None
        return signed.settlement

    async def fill(self) -> None:
        await self.database.run(open_lane("base-sepolia", SIGNER, 5))
        gate, gone = await self.shop.gate(4), await self.shop.gate()
        for number, sold_at in ((1, gate), (2, gone)):
            await self.shop.bought(sold_at, number)
            moved = await self.database.run(
                move(await self.settle(number), Move(State.CONFIRMED, NOW_MS, block_number=number))
            )
            assert moved is not None
            await self.shop.spend(key(number), self.shop.spend_request(sold_at), NOW_MS)
        for _ in range(2):  # the second one is of a purchase that is remembered
            (told,) = await spend_together(self.shop.purchases.ledger, [by_header(self.shop, gate)])
            assert isinstance(told, SpendResult)
            assert told.outcome is Spend.SPENT
        trusted = await self.shop.claim(gate, 3, assume_valid=True)
        assert trusted.purchase is not None
        await self.shop.purchases.grant(trusted.purchase, "0xhash", confirmed=False, spend_request=None, now_ms=NOW_MS)
        await self.database.run(move(await self.settle(3), Move(State.BROADCAST, clock_ms())))
        failed = Move(State.FAILED, NOW_MS, proof=Proof.REVERTED, error="reverted")
        await self.database.run(move(await self.settle(4), failed))
        await self.shop.claim(gate, 5)
        await self.shop.gates.delete(gone.id, NOW_MS)
        await self.claim(replace(new_settlement(6), payment=far_off()))
        await self.database.close()

    def break_with(self, *statements: str) -> None:
        """What no unit of work would do, constraints or not."""
        if IS_POSTGRESQL:
            self.without_constraints()
            change(self.path, *map(in_its_words, statements))
            return
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for statement in statements:
                connection.execute(statement)

    def without_constraints(self, table: str = "") -> None:
        if IS_POSTGRESQL:
            kinds = "'c', 'f', 'u'" if table else "'c', 'f'"
            own = (
                "SELECT conrelid::regclass::text AS of, conname FROM pg_constraint"
                " WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND contype IN ({})"
            )
            for row in sorted(rows_of(self.path, own.format(kinds)), key=lambda row: row["conname"]):
                change(self.path, f"ALTER TABLE {row['of']} DROP CONSTRAINT {row['conname']} CASCADE")
            return
        self.break_with(
            "PRAGMA legacy_alter_table = ON",
            f"ALTER TABLE {table} RENAME TO old_{table}",
            f"CREATE TABLE {table} AS SELECT * FROM old_{table}",  # noqa: S608 - own names
        )


def in_its_words(statement: str) -> str:
    """The statement as PostgreSQL says it."""
    for words, its in (
        ("json_each(spent)", "json_each(spent::json)"),
        ("json_object(", "json_build_object("),
        ("json_array(", "json_build_array("),
        ("json_set(spent, '$.\"again\"', 1)", "jsonb_set(spent::jsonb, '{again}', '1')"),
        ("'0x' || hex(zeroblob(20))", "convert_to('0x' || repeat('0', 40), 'UTF8')"),
        ("'secret' AS BLOB", "'secret' AS BYTEA"),
        ("'{}' AS BLOB", "'{}' AS BYTEA"),
    ):
        statement = statement.replace(words, its)
    return statement


def far_off() -> str:
    return json.dumps({"payload": {"authorization": {"validBefore": str(2**256 - 1)}}})


@pytest.fixture
async def books(tmp_path: Path) -> Books:
    made = Books(tmp_path / "books.db")
    await made.fill()
    made.break_with(f"UPDATE purchases SET valid_before_seconds = {2**53}")  # noqa: S608 - a number
    made.break_with(f"UPDATE settlements SET payment = '{far_off()}'")  # noqa: S608 - own text
    return made


def test_sound_books_differ_in_nothing(books: Books) -> None:
    assert differences_of(books.path) == []


NOTHING_TO_DUPLICATE = ("i1_one_purchase_per_payment", "i1_one_settlement_per_payment")
GIVEN_BACK = "INSERT INTO credits_given (cause, reason, purchase_id, delta, created_ms)"
SERVED = "UPDATE call_journal SET ended = (SELECT json_object('200', json_array(c.key)) FROM json_each(spent) c)"
SPENT_AGAIN = (
    "INSERT INTO call_journal (written_ms, spent, ended, interrupted) SELECT 0, json_object({call}, 1), '{{}}', '[]'"
)
BROKEN: list[tuple[str, str]] = [
    ("i2_remaining_is_the_ledger", "UPDATE credits SET remaining = remaining - 1 WHERE number = 1"),
    ("i2_remaining_is_the_ledger", "DELETE FROM single_calls WHERE id = 'call-1'"),
    ("i2_remaining_is_the_ledger", "UPDATE single_calls SET purchase_id = 'pur_2_2' WHERE id = 'call-1'"),
    ("i2_remaining_is_the_ledger", "DELETE FROM call_journal"),
    ("i2_remaining_is_the_ledger", "UPDATE call_journal SET spent = json_set(spent, '$.\"again\"', 1)"),
    ("i2_granted_is_what_was_bought", "UPDATE credits SET granted = granted + 1 WHERE number = 1"),
    ("i2_what_is_marked_used_up_holds_nothing", "UPDATE purchases SET is_used_up = 1 WHERE number = 1"),
    ("i2_credits_are_live_where_their_purchase_is", "UPDATE credits SET is_live = 0 WHERE number = 1"),
    ("i2_credits_are_live_where_their_purchase_is", "UPDATE credits SET is_live = 1 WHERE number = 2"),
    ("i2_credits_are_live_where_their_purchase_is", "DELETE FROM credits WHERE number = 1"),
    ("i2_credits_are_of_a_purchase", "UPDATE credits SET number = 99 WHERE number = 2"),
    ("i2_days_are_the_calls", "INSERT INTO call_days VALUES (1, 20000, 2, 1, 0)"),
    ("i2_granted_is_what_was_bought", "UPDATE purchases SET state = 'LIVE' WHERE nonce LIKE '%5'"),
    (
        "i3_a_call_is_charged_once",
        SPENT_AGAIN.format(call="(SELECT c.key FROM call_journal, json_each(spent) c LIMIT 1)"),
    ),
    ("i3_a_call_is_charged_once", SPENT_AGAIN.format(call="'call-1'")),
    (
        "i3_what_was_served_is_not_given_back",
        f"{GIVEN_BACK} SELECT id, 'restore', purchase_id, 1, 0 FROM calls WHERE id <> 'call-1';" + SERVED,  # noqa: S608
    ),
    ("i3_a_restored_call_has_its_credit_back", "UPDATE single_calls SET state = 'RESTORED' WHERE id = 'call-1'"),
    ("i3_what_is_given_back_was_spent", f"{GIVEN_BACK} VALUES ('no call', 'restore', 'pur_1_1', 1, 0)"),
    ("i3_what_is_given_back_was_spent", f"{GIVEN_BACK} VALUES ('call-1', 'restore', 'pur_2_2', 1, 0)"),
    (
        "i3_what_is_given_back_was_spent",
        f"{GIVEN_BACK} SELECT id, 'restore', 'pur_2_2', 1, 0 FROM calls WHERE id <> 'call-1'",  # noqa: S608
    ),
    (
        "i4_calls_within_the_credits",
        "UPDATE credits SET granted = 0, remaining = -1 WHERE number = 1",
    ),
    ("i5_credits_rest_on_a_payment", "UPDATE purchases SET transaction_hash = NULL WHERE nonce LIKE '%1'"),
    ("i5_credits_rest_on_a_payment", "UPDATE purchases SET confirmed = 0 WHERE nonce LIKE '%1'"),
    ("i10_no_claim_open_long_after_its_end", "UPDATE purchases SET valid_before_seconds = 1 WHERE nonce LIKE '%5'"),
    (
        "i10_no_claim_open_long_after_its_end",
        "UPDATE purchases SET valid_before_seconds = NULL, payer = 'D1A4B4rs' WHERE nonce LIKE '%5'",
    ),
    ("i11_terms_are_a_version_of_the_gate", "UPDATE purchases SET price_micro = 1 WHERE nonce LIKE '%1'"),
    ("i11_terms_are_a_version_of_the_gate", "UPDATE purchases SET value_micro = '1' WHERE nonce LIKE '%1'"),
    ("i13_a_payers_debt_is_within_the_cap", "UPDATE purchases SET value_micro = '99999999999' WHERE nonce LIKE '%3'"),
    ("i13_a_gates_debt_is_within_the_cap", "UPDATE purchases SET value_micro = '99999999999' WHERE nonce LIKE '%3'"),
    ("i14_addresses_and_requests_are_sealed", "UPDATE paygates SET payment_address = '0x' || hex(zeroblob(20))"),
    ("i14_addresses_and_requests_are_sealed", "UPDATE purchases SET request = CAST('{}' AS BLOB)"),
    ("i14_secrets_are_hashed", "UPDATE paygates SET management_hash = CAST('secret' AS BLOB)"),
    ("counters_are_the_sales", "UPDATE paygate_counters SET revenue_micro = revenue_micro + 1"),
    ("i6_what_is_mined_names_its_transaction", "UPDATE settlements SET block_number = NULL WHERE id = 's-1'"),
    ("i6_what_is_mined_names_its_transaction", "UPDATE settlements SET transaction_hash = '0x1' WHERE id = 's-1'"),
    ("i8_failed_has_a_proof", "UPDATE settlements SET proof = NULL WHERE id = 's-4'"),
    ("i8_failed_has_a_proof", "UPDATE settlements SET proof = 'expired', error = 'e' WHERE id = 's-1'"),
    ("i8_failed_has_a_proof", "UPDATE settlements SET proof = 'never_sent' WHERE id = 's-4'"),
    ("i9_every_slot_has_its_transaction", "UPDATE raw_transactions SET signer_nonce = 5"),
    ("i9_nonces_below_the_lanes_next", "UPDATE signer_lanes SET next_nonce = 6"),
    ("i9_nonces_below_the_lanes_next", "DELETE FROM signer_lanes"),
    ("i9_signed_is_what_was_signed", "UPDATE settlements SET transaction_hash = '' WHERE id = 's-3'"),
    (
        "i10_nothing_open_long_after_its_end",
        f"UPDATE settlements SET updated_ms = 1, payment = '{PAYMENT}' WHERE id = 's-3'",  # noqa: S608 - own text
    ),
    ("i12_the_log_is_dense", "DELETE FROM settlement_events WHERE settlement_id = 's-1' AND version = 1"),
    (
        "i12_each_event_goes_on_from_the_one_before",
        "UPDATE settlement_events SET from_state = 'MINED' WHERE version = 3 AND settlement_id = 's-1'",
    ),
    ("i12_the_log_ends_where_the_row_is", "UPDATE settlements SET state = 'MINED' WHERE id = 's-1'"),
    (
        "i12_each_transition_is_lawful",
        "UPDATE settlement_events SET from_state = 'FAILED' WHERE version = 3 AND settlement_id = 's-1'",
    ),
    (
        "i5_no_credits_of_a_failed_settlement",
        "UPDATE settlements SET state = 'FAILED', updated_ms = 1 WHERE id = 's-1'",
    ),
    ("a_sale_has_its_settlement", "UPDATE settlements SET nonce = 'another' WHERE id = 's-1'"),
    ("a_sale_is_worth_its_settlement", "UPDATE settlements SET value = '1' WHERE id = 's-1'"),
    ("a_settlement_for_a_gateway_has_its_sale", "UPDATE purchases SET state = 'FAILED' WHERE nonce LIKE '%1'"),
]


@pytest.mark.parametrize(("rule", "statement"), BROKEN)
def test_what_breaks_an_invariant_is_listed(books: Books, rule: str, statement: str) -> None:
    books.break_with(*statement.split(";"))
    found = differences_of(books.path)
    assert rule in {difference.rule for difference in found}
    assert all(difference.subject and difference.found for difference in found)


@pytest.mark.parametrize(
    ("table", "rule", "copy"),
    [
        ("purchases", "i1_one_purchase_per_payment", "UPDATE purchases SET nonce = 'same'"),
        ("settlements", "i1_one_settlement_per_payment", "UPDATE settlements SET nonce = 'same'"),
    ],
)
def test_two_rows_of_one_payment_are_listed_though_the_schema_forbids_them(
    books: Books, table: str, rule: str, copy: str
) -> None:
    books.without_constraints(table)
    books.break_with(copy)
    assert rule in {difference.rule for difference in differences_of(books.path)}


def test_every_invariant_is_seen_to_speak() -> None:
    files = ("invariants_gateway.sql", "invariants_hub.sql", "invariants_both.sql")
    names = {query.name for file in files for query in load_queries(file)}
    judged_in_code = {"i10_old_unfinished", "i12_transitions_seen"}
    assert names - judged_in_code <= {rule for rule, _ in BROKEN} | set(NOTHING_TO_DUPLICATE)


def test_a_debt_at_the_cap_is_within_it(books: Books) -> None:
    tight = replace(BOUNDS, payments=1, value_micro=10_000, gate_payments=1, gate_value_micro=10_000)
    with open_snapshot(str(books.path)) as snapshot:
        assert inspect(snapshot, clock_ms(), tight, is_shared=True).differences == []
        over = inspect(snapshot, clock_ms(), replace(tight, value_micro=9_999), is_shared=True).differences
    assert [difference.rule for difference in over] == ["i13_a_payers_debt_is_within_the_cap"]
    assert TRUST.payer.purchases > 1


async def test_a_snapshot_stands_still_beside_a_running_writer(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database = open_database(str(path))
    shop = Shop(database)
    gate = await shop.gate()
    with open_snapshot(str(path)) as snapshot:
        before = snapshot.read(load_queries("gateway.sql").paygate_by_id(id=gate.id))
        await shop.bought(gate)
        await shop.gates.delete(gate.id, NOW_MS)
        assert snapshot.read(load_queries("gateway.sql").paygate_by_id(id=gate.id)) == before
    await database.close()


@pytest.mark.sqlite_only("it is about SQLite's file")
def test_a_file_of_another_schema_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not there"), open_snapshot(str(tmp_path / "none")):
        pass
    other = tmp_path / "other"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE schema_migrations (version INTEGER)")
        connection.commit()
    with pytest.raises(StorageError, match="another version"), open_snapshot(str(other)):
        pass
    other.write_bytes(b"x" * 100)
    with pytest.raises(StorageError, match="cannot be read"), open_snapshot(str(other)):
        pass
