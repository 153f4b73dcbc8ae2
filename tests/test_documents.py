"""What holds for the documents: few decisions, short papers, short sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
DECISIONS_MAX: Final = 25
DECISION_WORDS_MAX: Final = 400
DECISION_PARTS: Final = ("**Context.**", "**Options.**", "**Outcome.**", "**Consequences.**")


def decisions() -> dict[str, str]:
    return {path.name[:4]: path.read_text() for path in sorted((DOCS / "decisions").glob("0*.md"))}


def test_decisions_are_few_and_short_and_have_the_same_parts() -> None:
    records = decisions()
    assert 0 < len(records) <= DECISIONS_MAX
    assert {name: count for name, text in records.items() if (count := len(text.split())) > DECISION_WORDS_MAX} == {}
    assert [name for name, text in records.items() if any(text.count(part) != 1 for part in DECISION_PARTS)] == []


def test_every_decision_that_is_cited_is_there() -> None:
    citation = re.compile(r"[Dd]ecisions? (\d{4}(?:(?:, | and )\d{4})*)")
    cited = {
        number
        for folder in ("src", "tests", "bench", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sql", ".md"}
        for numbers in citation.findall(path.read_text())
        for number in re.findall(r"\d{4}", numbers)
    }
    assert cited
    assert cited - set(decisions()) == set()
