"""The engines that there are, and the choice between them."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from tollkeeper.sandbox.evm.engine import EngineName

if TYPE_CHECKING:
    from tollkeeper.sandbox.evm.engine import Engine


def open_engine(chain_id: int, name: EngineName | None = None) -> Engine:
    """An empty world on the engine of that name; by default the fastest that this platform has.

    Raises: ImportError where the engine's library is not installed.
    """
    if name is None:
        name = EngineName.REVM if importlib.util.find_spec("pyrevm") else EngineName.PYEVM
    if name is EngineName.REVM:
        from tollkeeper.sandbox.evm.revm import RevmEngine  # noqa: PLC0415 - exists on some platforms only

        return RevmEngine(chain_id)
    # py-evm and what it imports raise the recursion limit to 100,000, under which nested JSON overflows the C stack.
    recursion_limit = sys.getrecursionlimit()
    from tollkeeper.sandbox.evm.pyevm import PyEvmEngine  # noqa: PLC0415 - takes half a second to import

    sys.setrecursionlimit(recursion_limit)
    return PyEvmEngine(chain_id)
