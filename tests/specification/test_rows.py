"""No row of the specification is forgotten, and none is tested under a name that it does not have."""

from __future__ import annotations

from tests.specification.rows import NOT_BUILT, ROWS, rows_under_test


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(ROWS)) == len(ROWS)


def test_every_row_is_exactly_one_test_case() -> None:
    tested = rows_under_test()
    assert [row for row in ROWS if tested[row] != 1] == []
    assert sorted(tested) == sorted(ROWS)


def test_every_row_that_is_not_built_says_why_and_what_is_answered() -> None:
    assert NOT_BUILT.keys() <= set(ROWS)
    assert all(entry.reason and entry.answer for entry in NOT_BUILT.values())


def test_rows_that_are_not_built_are_tested_apart_from_those_that_are() -> None:
    refused = rows_under_test("test_not_built")
    assert sorted(refused) == sorted(NOT_BUILT)
