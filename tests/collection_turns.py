"""Each job of a run begins to collect at another place; the order of the tests is the same in all.

Pytest rewrites a test file's assertions as it is imported for the first time. Jobs that went through the files side by
side would all rewrite each of them; so each finds most of them rewritten by another.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn what a folder holds by this job's share of it."""
    report = yield
    told: dict[str, object] = getattr(collector.config, "workerinput", {})
    if isinstance(collector, pytest.Directory) and told:
        job = int(str(told["workerid"]).removeprefix("gw"))
        start = len(report.result) * job // int(str(told["workercount"]))
        report.result = [*report.result[start:], *report.result[:start]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have one order before pytest puts tests together that share a fixture."""
    items.sort(key=lambda item: item.path)
