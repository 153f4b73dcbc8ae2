"""Needs of a process, and what its machine lacks (security A-58; contract 4.8).

Connections and files: as many as the system allows. Memory: files pass at a constant size. Where temporary files lie in
memory, or descriptors are few, a start and `config check` say so.
"""

from __future__ import annotations

import ctypes
import os
import resource
import tempfile
from pathlib import Path
from typing import Final

from tollkeeper.settings.model import Role, SettingProblem

_MOUNTS: Final = Path("/proc/self/mounts")  # elsewhere than on Linux there is none, and nothing is known
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_DESCRIPTORS_MIN: Final = 4096


def machine_findings(role: Role) -> list[SettingProblem]:
    """Return what makes this machine give out earlier than it should."""
    found = []
    folder = os.path.realpath(tempfile.gettempdir())
    if role is not Role.HUB and _kind_of(folder) in _IN_MEMORY:
        problem = f"{folder} is in memory, where large answers wait for slow callers"
        found.append(SettingProblem("TMPDIR", problem, "name a directory on a disk"))
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < _DESCRIPTORS_MIN:
        problem = f"it is {allowed}, and each call takes two descriptors"
        found.append(SettingProblem("ulimit -Hn", problem, f"raise it, to {_DESCRIPTORS_MIN} at least"))
    return found


def _kind_of(folder: str) -> str:
    """Return the kind of file system that a folder lies on; empty where that is not known."""
    try:
        mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return ""
    above = [(place, kind) for _, place, kind, *_ in mounts if Path(folder).is_relative_to(place)]
    return max(above, key=lambda one: len(one[0]))[1] if above else ""


_ENOUGH: Final = 1 << 20


def use_all_descriptors() -> None:
    """Take as many as the system lets this process and those that it starts have, and not only what it begins with.

    Many systems begin with 1024, for programs that know no better. Each caller takes one, and one more at the target.
    """
    now, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if allowed == resource.RLIM_INFINITY else min(allowed, _ENOUGH)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, allowed))


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
