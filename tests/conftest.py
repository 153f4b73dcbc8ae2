"""What all tests share: fixtures of several packages, the interpreter's usual recursion limit, a rare collector."""

import gc
import sys

# Half of what collecting ten thousand tests takes would be walks of the collector over what has come so far.
gc.set_threshold(100_000, 50, 100)

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

pytest_plugins = ("tests.described_answers", "tests.fixtures_chain")

# Where files take longest: begun last, one of them would keep one core busy while the other has nothing left.
_BEGUN_FIRST = ("faults", "workers", "cli", "gateway", "interop", "openapi")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files come first, all others as they came; among several jobs `--no-loadscope-reorder` keeps it so."""
    here = config.rootpath / "tests"
    ranks = {here / name: rank for rank, name in enumerate(_BEGUN_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.parent, len(ranks)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected lives to the end: the collector looks at what the tests make, and at nothing else."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
