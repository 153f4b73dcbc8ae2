"""How a process that serves takes memory from its system (contract 4.8: files pass at constant memory)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tollkeeper.settings import Settings

_M_ARENA_MAX: Final = -8  # glibc's number of the option


def share_one_heap(settings: Settings) -> None:
    """Give all threads one heap, where files lie in a bucket; to be called before there are others.

    The threads of the library that moves them would have one each, and keep in it what passed through: ten megabytes.
    Where the C library is not glibc nothing changes.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and not isinstance(settings.files.place, Path):
        set_option(_M_ARENA_MAX, 1)
