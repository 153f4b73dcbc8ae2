"""The core's own tests beside all others, in one process under coverage, told among theirs: `-p tests.core_beside`.

Each test of the whole runs once. The two loops that cover nothing that others leave, and that coverage would slow down
most, run among the others. The whole fails where a test of the core does, and where they leave a branch uncovered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
_CORE: Final = _ROOT / "tests" / "core"
_UNTRACED: Final = {"test_usdc.py": "million", "test_wire.py": "ten_thousand"}
_COVERAGE: Final = (sys.executable, "-m", "coverage")
_PYTEST: Final = ("-m", "pytest", "tests/core", "-q", "--no-header", "--no-summary", "-p", "tests.core_beside")


def _is_untraced(path: Path, name: str) -> bool:
    return path.parent == _CORE and path.name in _UNTRACED and _UNTRACED[path.name] in name


def pytest_addoption(parser: pytest.Parser) -> None:
    """The process of the core's own tests is told where to write their reports."""
    parser.addoption("--reports", type=Path, help="of tests.core_beside: this is the process beside")


def pytest_configure(config: pytest.Config) -> None:
    """One part, or the other, or a worker of the other."""
    if config.getoption("reports") is not None:
        config.pluginmanager.register(_Told(config))
        return
    config.pluginmanager.register(_Others())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Beside(config))


class _Told:
    """The core's own tests: everything that is reported of them is written down."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path: Path = config.getoption("reports")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not _is_untraced(item.path, item.name)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a") as file:
            file.write(json.dumps(told) + "\n")


class _Others:
    """All other tests."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_core = collection_path.parent == _CORE and collection_path.suffix == ".py"
        return True if is_core and collection_path.name not in {"__init__.py", *_UNTRACED} else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.path.parent != _CORE or _is_untraced(item.path, item.name)]


class _Beside:
    """Starts the other process, waits for its end, and tells what it reported."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder = tempfile.TemporaryDirectory(prefix="core-beside-")
        self._reports = Path(self._folder.name) / "reports"
        self._output = Path(self._folder.name) / "output"
        self._environment = {**os.environ, "COVERAGE_FILE": str(_ROOT / ".cache" / "coverage-core")}
        self._process = self._start(
            "run", "--branch", "--source=tollkeeper.core", *_PYTEST, f"--reports={self._reports}"
        )

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._output.open("ab") as output:
            return subprocess.Popen(
                [*_COVERAGE, *arguments], stdout=output, stderr=output, cwd=_ROOT, env=self._environment
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        done = yield
        ended = self._process.wait()
        count = self._tell(session)
        covered = self._start("report", "--skip-covered", "--fail-under=100").wait()
        if covered or not count or ended not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            said = self._output.read_text()[-10_000:]
            name = "every branch of the core is covered"
            fault = pytest.TestReport(f"tests/core::{name}", ("tests/core", None, name), {}, "failed", said, "call")
            self._config.hook.pytest_runtest_logreport(report=fault)
        return done

    def _tell(self, session: pytest.Session) -> int:
        hook = self._config.hook
        lines = self._reports.read_text().splitlines() if self._reports.exists() else []
        reports = [hook.pytest_report_from_serializable(config=self._config, data=json.loads(line)) for line in lines]
        session.testscollected += sum(report.when == "setup" for report in reports)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        return len(reports)

    def pytest_unconfigure(self) -> None:
        if self._process.poll() is None:  # the run was cut short
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
