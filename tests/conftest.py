"""What all tests share: fixtures of several packages, the interpreter's usual recursion limit, a rare collector."""

import gc
import itertools
import sys
from collections.abc import Iterator
from typing import Final

# Half of what collecting ten thousand tests takes would be walks of the collector over what has come so far.
gc.set_threshold(100_000, 50, 100)

# As the program does: a logged exception would be drawn with all that its frames hold, for seconds in which the loop
# of a test stands still where the machine is busy.
from tollkeeper.serving.process.imports import leave_rich_out  # noqa: E402 - it is the first of ours

leave_rich_out()

_recursion_limit = sys.getrecursionlimit()

import eth_account  # noqa: E402, F401 - after the limit was read
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# An oracle of the tests. It raises the limit to 100,000 as it is imported, and nested JSON then overflows the C stack
# in place of being refused; the program itself never imports it.
sys.setrecursionlimit(_recursion_limit)

# How long one generated example takes says something about the machine, not about the program.
settings.register_profile("tollkeeper", deadline=None)
settings.load_profile("tollkeeper")

from tests.engines import drop_databases_below, leave_out_other_engine, use_engine  # noqa: E402 - behind what comes first of ours

use_engine()

pytest_plugins = ("tests.collection_turns", "tests.described_answers", "tests.fixtures_chain")

# Files that mostly wait and files that mostly compute begin in turns, so that the cores always have work. The longest
# come first: begun last, one of them would keep one job busy while the others have nothing left.
_WAITING: Final = ("faults", "storage", "edge")
_COMPUTING: Final = ("deploy", "cli", "gateway", "interop", "openapi")
# Files that take longer than all others, one test after the other, or whose long forms do.
_LONGEST: Final = frozenset(
    {
        "test_ledger_kills.py",
        "test_killed_uploads.py",
        "test_solana_answers.py",
    }
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among several jobs `--no-loadscope-reorder` keeps this order."""
    leave_out_other_engine(config, items)
    here = config.rootpath / "tests"
    ranks = {here / name: rank for rank, name in enumerate((*_WAITING, *_COMPUTING))}
    files = sorted(
        dict.fromkeys(item.path for item in items),
        key=lambda path: (path.name not in _LONGEST, ranks.get(path.parent, len(ranks))),
    )
    is_waiting = [path.parent.name in _WAITING for path in files]
    turns = {True: itertools.count(), False: itertools.count()}
    places = {path: (next(turns[waits]), not waits) for path, waits in zip(files, is_waiting, strict=True)}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Behind a test's fixtures, its databases go."""
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    yield
    if directory is not None:
        drop_databases_below(directory)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected lives to the end: the collector looks at what the tests make, and at nothing else."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
