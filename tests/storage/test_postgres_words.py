from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

import pytest

from bench.postgres_batch import at_once
from bench.postgres_words import FILES, TABLES, VIEWS, positional, schema, words
from tollkeeper.storage import load_queries, open_database

if TYPE_CHECKING:
    from pathlib import Path

SQLITE_ONLY = re.compile(
    r"json_each|json_extract|\+\s*state|WITHOUT ROWID|INTEGER PRIMARY|min\(number\)|\.key AS place"
)


@pytest.mark.parametrize("file", FILES)
def test_every_statement_of_spends_is_said_in_words_of_postgresql(file: str) -> None:
    for query in load_queries(file):
        said = words()[query.sql]
        assert SQLITE_ONLY.search(said) is None, query.name
        assert said.count("jsonb_") == query.sql.count("json_each"), query.name
        assert set(positional(said)[1]) == query.parameters, query.name


def test_a_batch_is_one_statement_of_the_parameters_of_three() -> None:
    sql, names = positional(at_once())
    assert SQLITE_ONLY.search(sql) is None
    assert sorted(names) == ["calls", "ended", "interrupted", "judged", "now_ms", "wanted"]


async def test_the_tables_of_spends_are_said_in_words_of_postgresql(tmp_path: Path) -> None:
    await open_database(str(tmp_path / "a.db")).close()
    with sqlite3.connect(tmp_path / "a.db") as file:
        said = schema(file)
        triggers = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
    file.close()
    assert [sql for sql in said if SQLITE_ONLY.search(sql)] == []
    for name in (*TABLES, *VIEWS):
        assert any(re.match(rf'CREATE (?:TABLE|VIEW) "?{name}"?[ (]', sql) for sql in said), name
    assert [name for name in triggers if not any(f"EXECUTE FUNCTION {name}()" in sql for sql in said)] == []
