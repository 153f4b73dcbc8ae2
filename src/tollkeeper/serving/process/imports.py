"""Preparations of a process before it imports its thousand modules, to start sooner and smaller.

The rule beside them: what is heavy, and what a start does not need, is imported where it is first used.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

# Calls in flight are some thousand objects that live for milliseconds: looked at after every 700, as by default, each
# would be looked at several times, and what is imported again and again, a tenth of a start. What a call leaves behind
# is freed without the collector.
_COLLECT_AFTER: Final = (20_000, 20, 20)


def collect_rarely() -> None:
    """Let the collector look after every 20,000 new objects."""
    gc.set_threshold(*_COLLECT_AFTER)


def leave_rich_out() -> None:
    """Import structlog without `rich`, which it would take for tracebacks as we never draw them: three megabytes."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # which the import system reads as "there is none"
    import structlog  # noqa: F401, PLC0415 - it must not be imported before

    del sys.modules["rich"]  # whoever needs it later, to refuse for instance, finds it
