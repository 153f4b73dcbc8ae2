"""Libraries of the embedded chains, which come with the extra `sandbox` and with nothing that serves.

This module imports none of them: it says which are missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_SOLANA: Final = "solders"
_ENGINES: Final = {"pyrevm": ("pyrevm",), "pyevm": ("eth", "eth_tester")}


def missing_libraries(engine: str) -> str:
    """Say in one line what the sandbox lacks, and what brings it; empty where nothing is missing."""
    missing = [] if find_spec(_SOLANA) else [_SOLANA]
    names = [engine] if engine in _ENGINES else list(_ENGINES)
    if not any(all(map(find_spec, _ENGINES[name])) for name in names):
        missing.append(names[0])
    if not missing:
        return ""
    return (
        f"{' and '.join(missing)} missing, which the embedded chains need: install the extra that brings them, "
        "pip install 'tollkeeper[sandbox]' (in a clone: pip install '.[sandbox]')"
    )
