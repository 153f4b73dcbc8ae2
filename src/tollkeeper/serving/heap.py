"""How a process that serves takes memory from its system (contract 4.8: files pass at constant memory)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tollkeeper.settings import Settings

# glibc's numbers of the options.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_KEPT_SIZE_BYTES: Final = 16 * 1024 * 1024
_ALONE_SIZE_BYTES: Final = 4 * 1024 * 1024


def set_up_heap(settings: Settings) -> None:
    """Keep a little of what is freed, in each heap, and one heap for all threads where files lie in a bucket.

    What a large answer took would else go back to the system and be asked for again, page by page, with each answer
    (performance 31). The threads of the library that moves files would have a heap each, and keep in it what passed
    through: ten megabytes. To be called before there are threads; where the C library is not glibc nothing changes.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    set_option(_M_TRIM_THRESHOLD, _KEPT_SIZE_BYTES)
    set_option(_M_MMAP_THRESHOLD, _ALONE_SIZE_BYTES)  # else it would no longer grow by itself beyond an answer's parts
    if not isinstance(settings.files.place, Path):
        set_option(_M_ARENA_MAX, 1)
