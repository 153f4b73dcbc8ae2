"""How a process that serves takes memory from its system (contract 4.8: files pass at constant memory)."""

from __future__ import annotations

import ctypes
from typing import Final

# glibc's numbers of the options.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_KEPT_SIZE_BYTES: Final = 16 * 1024 * 1024
_ALONE_SIZE_BYTES: Final = 4 * 1024 * 1024


def set_up_heap() -> None:
    """Keep a little of what is freed, in one heap for all threads.

    What a large answer took would else go back to the system and be asked for again, page by page, with each answer
    (performance 2). Threads would have a heap each, and keep in it what passed through: the check of
    the books, or files that lie in a bucket. To be called before there are threads; where the C library is not glibc
    nothing changes.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    set_option(_M_TRIM_THRESHOLD, _KEPT_SIZE_BYTES)
    set_option(_M_MMAP_THRESHOLD, _ALONE_SIZE_BYTES)  # else it would no longer grow by itself beyond an answer's parts
    set_option(_M_ARENA_MAX, 1)


def give_back_freed() -> None:
    """Give the system all that is kept of what was freed, for work that takes much and comes rarely.

    Others wait for the heap meanwhile, 1.5 ms where it has 20 MB. Any thread may call it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
