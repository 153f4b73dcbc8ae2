"""What holds after every fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.books import assert_books_agree


@pytest.fixture(autouse=True)
def books_agree(tmp_path: Path) -> Iterator[None]:
    """Every invariant holds in the databases that the fault left."""
    yield
    assert_books_agree(tmp_path)
