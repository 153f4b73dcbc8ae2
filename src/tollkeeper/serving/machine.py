"""Warnings about the machine: temporary files in memory, few descriptors. At a start, and for `config check`."""

from __future__ import annotations

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
