"""What all tests share: fixtures of several packages, and the interpreter's usual recursion limit."""

import sys

_recursion_limit = sys.getrecursionlimit()

import eth_account  # noqa: E402, F401 - after the limit was read
from hypothesis import settings  # noqa: E402

# An oracle of the tests. It raises the limit to 100,000 as it is imported, and nested JSON then overflows the C stack
# in place of being refused; the program itself never imports it.
sys.setrecursionlimit(_recursion_limit)

# How long one generated example takes says something about the machine, not about the program.
settings.register_profile("tollkeeper", deadline=None)
settings.load_profile("tollkeeper")

pytest_plugins = ("tests.described_answers", "tests.fixtures_chain")
