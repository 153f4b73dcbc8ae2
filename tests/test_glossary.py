"""The glossary is obeyed: no name in the code has a former word, and a paid call is told in few terms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ROOT / "src" / "tollkeeper"
FORMER: Final = "## Former words"
TERMS_MAX: Final = 30


def first_cells(text: str) -> list[str]:
    """The words that tables explain, each word of a row that has several."""
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    return [word.strip().lower() for row in rows if row not in {"word", "former"} for word in row.split(",")]


def tables() -> tuple[list[str], list[str]]:
    """The terms, and the former words."""
    terms, former = (ROOT / "docs" / "glossary.md").read_text().split(FORMER)
    return first_cells(terms), first_cells(former)


def names(path: Path) -> Iterator[str]:
    """Every name that a module gives or uses, and its own."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def words(path: Path) -> set[str]:
    """The words of those names, and names themselves in small letters, without underlines."""
    found: set[str] = set()
    for name in names(path):
        parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
        found |= {*parts, " ".join(parts)}
    return found


def test_no_name_has_a_former_word() -> None:
    _, former = tables()
    assert former
    forms = {form for word in former for form in (word, word + "s", word + "es")}
    found = {str(path.relative_to(SOURCES)): words(path) & forms for path in SOURCES.rglob("*.py")}
    assert {path: used for path, used in found.items() if used} == {}


def test_a_paid_call_is_told_in_few_terms() -> None:
    terms, _ = tables()
    used = words(SOURCES / "gateway" / "call" / "flow.py") | words(SOURCES / "gateway" / "call" / "credit.py")
    found = {term for term in terms if term in used or term + "s" in used}
    assert 0 < len(found) <= TERMS_MAX
