"""Credits lie apart from purchases since schema version 18: a database of before keeps every credit, call and entry."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.books import differences_of
from tests.storage.test_purchases import HEADER, NOW_MS, Shop, key
from tollkeeper.core.purchases import Spend
from tollkeeper.storage import ConstraintError, open_database
from tollkeeper.storage.migrations import load_migrations
from tollkeeper.storage.purchase_rows import SpendRequest
from tollkeeper.storage.sqlite_file import open_sqlite

FORMER_VERSION = 17
LIVE, VOID, CLAIMED, FAILED, EXPIRED = range(1, 6)
SEALED = b"x" * 80


GATE = {
    "id": 1, "slug": "one", "version": 1, "target_url": "http://t/", "price_micro": 10_000, "credits": 3,
    "methods": "GET", "title": "", "description": "", "assume_valid": 0, "require_auth": 0, "is_enabled": 1,
    "network": "base-sepolia", "payment_address": SEALED, "mime_type": "", "created_ms": 1, "updated_ms": 1,
}  # fmt: skip
TERMS = {"price_micro": 10_000, "credits": 3, "network": "base-sepolia", "pay_to": SEALED}
CALL = "id, purchase_id, state, status, created_ms, ended_ms"
COUNTERS = {"challenges": 0, "purchases": 3, "calls": 4, "failures": 1, "revenue_micro": 20_000}


def insert(connection: sqlite3.Connection, table: str, columns: dict[str, Any]) -> None:
    names, places = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", columns)  # noqa: S608 - own names


def purchase(connection: sqlite3.Connection, number: int, state: str, **columns: Any) -> None:
    paid = key(number)
    row = {
        "id": f"pur_{number}", "network": paid.network, "asset": paid.asset, "payer": paid.payer, "nonce": paid.nonce,
        "gate_id": 1, "gate_version": 1, "price_micro": 10_000, "credits": 3, "pay_to": SEALED, "value_micro": "10000",
        "header_hash": HEADER, "assume_valid": 0, "confirmed": 1, "state": state, "attempt": 1,
        "transaction_hash": "0xhash", "claimed_ms": NOW_MS - number, "attempt_ms": NOW_MS,
        "updated_ms": NOW_MS + number,
    }  # fmt: skip
    insert(connection, "purchases", row | columns)


def fill(connection: sqlite3.Connection) -> None:
    """As version 17 wrote it: one purchase of each kind, calls of each state."""
    insert(connection, "paygates", GATE)
    insert(connection, "paygate_versions", {"gate_id": 1, "version": 1, **TERMS, "created_ms": 1})
    insert(connection, "paygate_counters", {"gate_id": 1, **COUNTERS})
    purchase(connection, LIVE, "LIVE", granted=3, remaining=1, granted_ms=NOW_MS, token_used=1)
    purchase(connection, VOID, "VOID", granted=3, remaining=2, granted_ms=NOW_MS, failure="settlement_failed")
    purchase(connection, CLAIMED, "CLAIMED", transaction_hash=None, request=SEALED, valid_before_seconds=2**40)
    purchase(connection, FAILED, "FAILED", failure="expired", attempt=2)
    expired = {"granted_ms": 1, "expires_ms": 2, "credits_expire_after_seconds": 1}
    purchase(connection, EXPIRED, "LIVE", granted=3, remaining=3, **expired)
    calls = ((LIVE, "DONE", 200), (LIVE, "DISPATCHED", None), (LIVE, "RESTORED", 502), (VOID, "INTERRUPTED", None))
    for number, (of, state, status) in enumerate(calls):
        call = {"id": f"call-{number}", "purchase_id": f"pur_{of}", "gate_id": 1, "state": state, "status": status}
        insert(connection, "calls", call | {"created_ms": NOW_MS + number, "ended_ms": None})
        entry = {"cause": f"call-{number}", "purchase_id": f"pur_{of}", "created_ms": NOW_MS + number}
        insert(connection, "credit_entries", entry | {"reason": "spend", "delta": -1})
        if state == "RESTORED":
            insert(connection, "credit_entries", entry | {"reason": "restore", "delta": 1})
    for of in (LIVE, VOID, EXPIRED):
        grant = {"cause": f"pur_{of}", "reason": "grant", "purchase_id": f"pur_{of}", "delta": 3}
        insert(connection, "credit_entries", grant | {"created_ms": NOW_MS})


def rows(path: Path, sql: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


async def former(path: Path) -> None:
    known = [migration for migration in load_migrations() if migration.version <= FORMER_VERSION]
    await open_sqlite(path, known, migrate=True).close()
    with closing(sqlite3.connect(path)) as connection:
        fill(connection)
        connection.commit()


def _is_followed(row: dict[str, Any]) -> bool:
    """One of these sales is of long ago, where no reorganisation takes a payment away any more."""
    return row["state"] == "LIVE" and bool(row["confirmed"]) and row["honoured_ms"] is None and row["granted_ms"] > 1


async def test_a_database_of_before_keeps_every_purchase_credit_call_and_entry(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await former(path)
    read = {
        "SELECT * FROM purchases ORDER BY id": "SELECT * FROM holdings ORDER BY id",
        f"SELECT {CALL} FROM calls ORDER BY id": "SELECT * FROM calls ORDER BY id",  # noqa: S608 - own names
        "SELECT * FROM credit_entries ORDER BY cause, reason": "SELECT * FROM credit_entries ORDER BY cause, reason",
    }
    before = [rows(path, then) for then in read]
    await open_database(str(path)).close()
    after = [rows(path, now) for now in read.values()]
    numbers = [row.pop("number") for row in after[0]]
    assert len(set(numbers)) == 5
    assert [row.pop("is_used_up") for row in after[0]] == [0] * 5
    added = ("untold_ms", "forgotten_ms", "shown_in", "kept_until")
    assert {row.pop(column) for row in after[0] for column in added} == {None}
    looks = [(row.pop("paid_ms"), row.pop("follow_ms")) for row in after[0]]
    assert looks == [(row["granted_ms"],) * 2 if _is_followed(row) else (None, None) for row in after[0]]
    assert after == before
    assert rows(path, "PRAGMA foreign_key_check") == []
    assert rows(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    assert differences_of(path) == []
    assert rows(path, "SELECT name FROM sqlite_master WHERE name LIKE 'former%'") == []


async def test_what_a_database_of_before_holds_is_granted_spent_and_given_back_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await former(path)
    database = open_database(str(path))
    purchases = Shop(database).purchases

    def wish(call_id: str, header: bytes | None = HEADER) -> SpendRequest:
        return SpendRequest(1, 1, header, call_id, header is None)

    claimed = await purchases.by_payment(key(CLAIMED))
    assert claimed is not None
    granted = await purchases.grant(claimed, "0xlate", confirmed=True, wish=wish("first"), now_ms=NOW_MS)
    assert (granted.outcome, granted.purchase and granted.purchase.remaining) == (Spend.SPENT, 2)
    answers = [await purchases.spend(key(of), wish(f"held-{of}"), NOW_MS) for of in range(LIVE, EXPIRED + 1)]
    assert [answer.outcome for answer in answers] == [
        Spend.WITHHELD,  # its credit token was used
        Spend.EXHAUSTED,
        Spend.SPENT,
        Spend.FAILED,
        Spend.EXHAUSTED,
    ]
    by_token = [await purchases.spend_token("pur_1", wish(f"token-{number}", None), NOW_MS) for number in range(2)]
    assert [answer.outcome for answer in by_token] == [Spend.SPENT, Spend.EXHAUSTED]
    assert await purchases.restore("call-1", 502, NOW_MS) == 1  # so it has one for the next
    assert await purchases.restore("call-2", 502, NOW_MS) is None
    with pytest.raises(ConstraintError):
        await purchases.spend_token("pur_1", wish("call-0", None), NOW_MS)
    await database.close()
    assert {difference.rule for difference in differences_of(path)} == set()


async def test_revenue_that_had_become_a_fraction_is_counted_anew(tmp_path: Path) -> None:
    path, much = tmp_path / "db", 10**18 - 1
    await former(path)
    with closing(sqlite3.connect(path)) as connection:
        for number in range(EXPIRED + 1, EXPIRED + 11):
            granted = {"granted": 3, "remaining": 3, "granted_ms": 1}
            purchase(connection, number, "LIVE", value_micro=str(much), **granted)
        connection.execute("UPDATE paygate_counters SET revenue_micro = ?", (1.0e19,))
        connection.commit()
    await open_database(str(path)).close()
    sold = 10 * much + 2 * 10_000  # and what is live from before
    (counted,) = rows(path, "SELECT revenue_high, revenue_micro, typeof(revenue_micro) AS kind FROM paygate_counters")
    assert counted == {"revenue_high": sold // 10**18, "revenue_micro": sold % 10**18, "kind": "integer"}


async def test_what_was_used_up_before_is_left_out_of_a_wallets_look_and_what_was_not_is_found(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await former(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE purchases SET remaining = 0 WHERE id = 'pur_2'")
        connection.commit()
    database = open_database(str(path))
    assert {row["id"]: row["is_used_up"] for row in rows(path, "SELECT id, is_used_up FROM purchases")} == {
        "pur_1": 0, "pur_2": 1, "pur_3": 0, "pur_4": 0, "pur_5": 0,
    }  # fmt: skip
    await database.close()
