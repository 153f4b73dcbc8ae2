"""What holds after every fault, and how many came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.books import assert_books_agree
from tests.faults.aftermath import CHECKED
from tests.faults.counts import PROPERTY, taken

_HAS_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Whoever failed, or was interrupted, has no end to be asked about."""
    report = yield
    if report.when == "call":
        item.stash[_HAS_PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def aftermath(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of a fault has looked at what it left; every invariant holds once its programs have ended, too."""
    taken()
    yield
    request.node.user_properties.append((PROPERTY, taken()))
    assert_books_agree(tmp_path)
    if request.node.stash.get(_HAS_PASSED, False):
        assert any(tmp_path in (path, *path.parents) for path in CHECKED), (
            "this test does not end with assert_nothing_lost"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The counts that were reached."""
    counts: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                for name, value in report.user_properties:
                    counts.update(value if name == PROPERTY else {})
    if counts:
        terminalreporter.section("faults that came")
        for fault, times in sorted(counts.items()):
            terminalreporter.write_line(f"{times:8} {fault}")
