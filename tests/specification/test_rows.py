"""No row of the specification is forgotten, on either family, and none is tested under a name that it does not have."""

from __future__ import annotations

from tests.specification.rows import OF_ONE_FAMILY, ROWS, is_on_solana, on_solana, rows_under_test


def test_every_row_has_a_name_of_its_own() -> None:
    assert len(set(ROWS)) == len(ROWS)


def test_every_row_is_exactly_one_test_case() -> None:
    tested = rows_under_test()
    assert [row for row in ROWS if tested[row] != 1] == []
    assert sorted(tested) == sorted(ROWS)


def test_every_row_is_tested_on_both_families_but_those_that_the_specification_gives_to_one() -> None:
    tested = rows_under_test()
    once = [row for row in tested if not is_on_solana(row) and on_solana(row) not in tested]
    assert sorted(once) == sorted(OF_ONE_FAMILY)
    # Payment payload and its typed data, and the networks themselves: no other section says a family's name for a row.
    assert {row.partition("-")[0].partition(".")[0] for row in once} == {"2"}
    assert {row[:3] for row in once} == {"2.3", "2.4"}
