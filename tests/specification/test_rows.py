"""No row of the specification is forgotten, and none is tested under a name that it does not have."""

from __future__ import annotations

from tests.specification.rows import ROWS, rows_under_test


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(ROWS)) == len(ROWS)


def test_every_row_is_exactly_one_test_case() -> None:
    tested = rows_under_test()
    assert [row for row in ROWS if tested[row] != 1] == []
    assert sorted(tested) == sorted(ROWS)
