"""The loader of named SQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.plans import plan_of
from tollkeeper.storage.engine.database import load_queries, parse_queries
from tollkeeper.storage.urls import open_database

names = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
plain = st.text("abcxyzABC0123456789_=<>()*,.+ \n", max_size=30)
quoted = st.text("ab:'\";-/*\n ", max_size=12).filter(lambda text: "--" not in text)


@st.composite
def fragments(draw: st.DrawFn) -> tuple[str, str, set[str]]:
    """A piece of SQL as written, as it should be loaded, and its parameters."""
    kind = draw(st.sampled_from(["plain", "literal", "name", "parameter", "cast", "comment", "block"]))
    if kind == "plain":
        text = draw(plain)
        return text, text, set()
    if kind in {"literal", "name"}:
        mark = "'" if kind == "literal" else '"'
        text = mark + draw(quoted).replace(mark, mark * 2) + mark
        return f" {text} ", f" {text} ", set()
    if kind == "parameter":
        name = draw(names)
        return f" :{name} ", f" :{name} ", {name}
    if kind == "cast":
        return " x::text ", " x::text ", set()
    if kind == "comment":
        return f"-- {draw(st.text(':;x ', max_size=8))}\n", " \n", set()
    return f"/* {draw(st.text(':;x ', max_size=8))} */", " ", set()


@given(
    st.lists(
        st.tuples(names, st.lists(fragments(), max_size=8)), min_size=1, max_size=5, unique_by=lambda block: block[0]
    ),
    st.sampled_from(["", ";"]),
)
def test_every_block_is_loaded_as_written_with_exactly_its_parameters(
    blocks: list[tuple[str, list[tuple[str, str, set[str]]]]], end: str
) -> None:
    text = "-- a file of queries\n\n"
    for name, pieces in blocks:
        text += f"-- name: {name}\nSELECT {''.join(piece[0] for piece in pieces)}{end}\n\n"
    loaded = parse_queries(text)
    assert list(loaded) == [name for name, _ in blocks]
    for name, pieces in blocks:
        expected = ("SELECT " + "".join(piece[1] for piece in pieces)).strip()
        assert loaded[name].sql == expected
        assert loaded[name].parameters == set().union(*(piece[2] for piece in pieces))


@given(st.sets(names, min_size=1, max_size=4), st.sets(names, max_size=4))
def test_a_query_takes_exactly_its_parameters(wanted: set[str], given_names: set[str]) -> None:
    query = parse_queries(f"-- name: q\nSELECT {', '.join(f':{name}' for name in wanted)}")["q"]
    params: dict[str, int | str | bytes | None] = dict.fromkeys(given_names, 1)
    if given_names == wanted:
        assert query(**params).params == params
        return
    with pytest.raises(TypeError) as refusal:
        query(**params)
    assert all(name in str(refusal.value) for name in wanted ^ given_names)


def test_a_comment_may_follow_the_statement() -> None:
    loaded = parse_queries("-- name: a\nSELECT 1; -- the one\n-- and more\n")
    assert loaded["a"].sql == "SELECT 1"


def test_an_unknown_query_is_named_with_its_file() -> None:
    with pytest.raises(AttributeError, match=r"sequences\.sql has no query named nothing"):
        load_queries("sequences.sql").nothing()


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        load_queries("nothing.sql")


def test_loaded_sql_binds_in_the_database() -> None:
    query = parse_queries("-- name: q\nSELECT :a || ':b' AS text -- :c\n")["q"]
    statement = query(a="x")
    assert sqlite3.connect(":memory:").execute(statement.sql, statement.params).fetchone() == ("x:b",)


@pytest.mark.sqlite_only("it is about SQLite's file")
@pytest.mark.parametrize(
    ("file", "name", "given", "indexes"),
    [
        (
            "settlements.sql",
            "find_named",
            {"network": "base", "name": "0x"},
            {"settlements_by_nonce (network=? AND nonce=?)", "settlements_by_alias (network=? AND alias=?)"},
        ),
        (
            "settlements.sql",
            "find_payment",
            dict.fromkeys(("network", "payer", "nonce", "asset"), ""),
            {"settlements_by_nonce (network=? AND nonce=?)"},
        ),
        (
            "settlements.sql",
            "name_replacement",
            dict.fromkeys(("network", "signer", "signer_nonce", "old_hash", "new_hash", "now_ms"), 0),
            {
                "settlement_slots_by_nonce (network=? AND signer=? AND signer_nonce=?)",
                "sqlite_autoindex_settlements_1 (id=?)",
            },
        ),
        (
            "gateway.sql",
            "oldest_of_payer",
            dict.fromkeys(("payer", "gate_id", "now_ms", "parked_since_ms"), 0),
            {
                "purchases_by_payer (payer=? AND gate_id=? AND is_used_up=?)",
                "sqlite_autoindex_paygates_1 (id=?)",
            },
        ),
        (
            "gateway.sql",
            "unpaid_of_payer",
            dict.fromkeys(("payer", "gate_id", "limit"), 0),
            {"purchases_unpaid_by (payer=?)"},
        ),
        (
            "gateway.sql",
            "exposure_of_payer",
            dict.fromkeys(("payer", "after_ms"), 0),
            {"purchases_trusted (state=? AND payer=?)", "purchases_unpaid (updated_ms>?)"},
        ),
        (
            "gateway.sql",
            "exposure_of_gate",
            dict.fromkeys(("gate_id", "after_ms"), 0),
            {"purchases_trusted_at (state=? AND gate_id=?)", "purchases_unpaid (updated_ms>?)"},
        ),
        ("gateway.sql", "unconfirmed_purchases", {"limit": 0}, {"purchases_trusted_at (state=?)"}),
        (
            "statistics.sql",
            "sales_of_gate",
            dict.fromkeys(("gate_id", "from_ms", "to_ms"), 0),
            {"purchases_granted (gate_id=? AND granted_ms>? AND granted_ms<?)"},
        ),
        (
            "statistics.sql",
            "sales_of_owner",
            dict.fromkeys(("owner_wallet", "from_ms", "to_ms"), 0),
            {
                "paygates_by_owner (owner_wallet=?)",
                "purchases_granted (gate_id=? AND granted_ms>? AND granted_ms<?)",
            },
        ),
        (
            "statistics.sql",
            "outstanding_of_owner",
            dict.fromkeys(("owner_wallet", "now_ms"), 0),
            {"paygates_by_owner (owner_wallet=?)", "purchases_by_gate (gate_id=? AND state=?)"},
        ),
        (
            "files.sql",
            "left_files",
            dict.fromkeys(("now_ms", "limit"), 0),
            {"files_left (kept_until_ms<?)", "sqlite_autoindex_paygates_1 (id=?) LEFT-JOIN"},
        ),
        (
            "files.sql",
            "due_in_piece",
            {**dict.fromkeys(("gate_id", "after", "many", "now_ms"), 0), "state": "VOID"},
            {"purchases_by_gate (gate_id=? AND state=? AND rowid>?)"},
        ),
        (
            "reconciliation.sql",
            "settlements_in_blocks",
            {"network": "base", "asset": "0x", "first": 0, "end": 0},
            {
                "settlements_by_block (network=? AND block_number>? AND block_number<?)",
                "settlements_confirmed (network=?)",
            },
        ),
        *(
            (
                "reconciliation.sql",
                "recipients",
                {"network": "base", "asset": "0x", "of_sales": of_sales},
                {
                    "settlements_by_recipient",
                    "settlements_by_recipient (pay_to>?)",
                    "settlements_by_recipient (pay_to=?)",
                },
            )
            for of_sales in (0, 1)
        ),
        ("gateway.sql", "forgotten_sales", {"since_ms": 0}, {"purchases_forgotten (forgotten_ms>?)"}),
        (
            "idempotency.sql",
            "forget_refusals",
            dict.fromkeys(("before_ms", "limit"), 0),
            {"sqlite_autoindex_idempotency_1 (key=?)", "idempotency_refused (created_ms<?)"},
        ),
        (
            "idempotency.sql",
            "settle_keys",
            dict.fromkeys(("settlement_id", "attempt", "answer"), 0),
            {"idempotency_by_settlement (settlement_id=? AND attempt=?)"},
        ),
    ],
)
async def test_what_is_asked_often_or_by_anybody_is_found_without_looking_at_everybody_s(
    file: str, name: str, given: dict[str, object], indexes: set[str], tmp_path: Path
) -> None:
    query = getattr(load_queries(file), name)(**given)
    database = open_database(str(tmp_path / "books.db"))
    lines = await plan_of(database, query)
    await database.close()
    assert {line.partition(" INDEX ")[2] for line in lines if " INDEX " in line} == indexes
    assert not any(
        "SCAN" in line for line in lines if line not in {"SCAN owed", "SCAN paid", "SCAN sold"}
    )  # rows of its own


PAGE = {"limit": 20, "offset": 1_000_000}
OF_GATE = {"gate_id": 1, "outcome": "failed"}
OF_WALLET = {"wallet": "0x", "as_signer": 1, "as_recipient": 1, "network": "base"}


@pytest.mark.sqlite_only("it is about SQLite's file")
@pytest.mark.parametrize(
    ("file", "name", "given", "indexes"),
    [
        ("statistics.sql", "requests_of_gate", {**OF_GATE, **PAGE}, {"requests_by_gate"}),
        ("statistics.sql", "count_requests_of_gate", OF_GATE, {"requests_by_gate"}),
        ("gateway.sql", "paygates_of_owner", {"owner_wallet": "0x", **PAGE}, {"paygates_by_owner"}),
        ("gateway.sql", "count_paygates_of_owner", {"owner_wallet": "0x"}, {"paygates_by_owner"}),
        ("gateway.sql", "ownerless_paygates", PAGE, {"paygates_by_owner"}),
        ("gateway.sql", "count_ownerless_paygates", {}, {"paygates_by_owner"}),
        ("gateway.sql", "purchases_of_payer", {"payer": "0x", **PAGE}, {"purchases_by_payer"}),
        ("gateway.sql", "count_purchases_of_payer", {"payer": "0x"}, {"purchases_by_payer"}),
        (
            "settlements.sql",
            "list_history",
            {**OF_WALLET, **PAGE},
            {"settlements_by_payer", "settlements_by_recipient"},
        ),
        ("settlements.sql", "count_history", OF_WALLET, {"settlements_by_payer", "settlements_by_recipient"}),
    ],
)
async def test_where_a_page_begins_and_how_many_items_there_are_is_found_in_indexes_alone(
    file: str, name: str, given: dict[str, object], indexes: set[str], tmp_path: Path
) -> None:
    """So a deep page is as little work as the first one, but for a walk over so many keys."""
    query = getattr(load_queries(file), name)(**given)
    database = open_database(str(tmp_path / "books.db"))
    lines = await plan_of(database, query)
    await database.close()
    alone = {line.partition(" COVERING INDEX ")[2].split(" ")[0] for line in lines if " COVERING INDEX " in line}
    assert alone == indexes
    assert not [line for line in lines if "SCAN" in line and line not in {"SCAN page", "SCAN CONSTANT ROW"}]
