"""`parts`: where each microsecond of a call goes, at nginx, at the servers of `floor` and at the program.

Each side's processor time of a call is measured first, in turns. Then perf looks some thousand times a second at what
each side does under the same load: the share of the looks that find a part at work, times the time of a call, is that
part's. In the kernel a part is what was asked for (by system call), else it is whose machine code runs. perf is
installed where it is missing; who may not use it (`kernel.perf_event_paranoid`) is told so.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from bench.floor import sides_of
from bench.gateway import family
from bench.measuring import Result, cores, say
from bench.nginx import tool
from bench.scene import ROUND_SECONDS, ROUNDS, rates, scene

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.wrk import Calls

_LOOKS_PER_SECOND: Final = 4999  # no divisor of anything that happens at regular times
_SECONDS: Final = 5
LOOKED_SECONDS: Final = _SECONDS + 1  # perf begins a moment behind the load
# The kernel's own way to each system call, which the call's function is behind.
_ENTRY: Final = ("entry_SYSCALL_64_after_hwframe", "do_syscall_64", "x64_sys_call")
# By words in the function's name (`__x64_sys_pread64`, `ksys_write`, `do_writev`), in this order: `pread64` is the
# database's.
_KERNEL: Final = (
    ("disk", ("sync", "pread", "pwrite")),
    ("writes", ("write", "send")),
    ("reads", ("read", "recv")),
    ("polls", ("epoll",)),
)
# By the start of the file's name; the C library is what SQLite's is for, or what anybody's is.
_FILES: Final = (
    ("sqlite", ("libsqlite",)),
    ("interpreter", ("python", "libpython")),
    ("loop", ("loop.",)),
    ("nginx", ("nginx",)),
)
PARTS: Final = ("writes", "reads", "polls", "disk", "kernel", "interpreter", "sqlite", "loop", "nginx", "libraries")


def measure() -> Result:
    """`ours`: the program's processor time of a call; every part of every side in the further fields."""
    also: dict[str, float | str] = {}
    with ExitStack() as stack:
        running = stack.enter_context(scene())
        sides = sides_of(stack, running)
        running.gateway.rest()
        rate = rates("parts", sides, ROUNDS, ROUND_SECONDS)
        for name, (one, pid) in sides.items():
            also |= parts_of(name, 1e6 / rate[name], one, pid, running.directory)
    ours, reference = 1e6 / rate["held_credits"], 1e6 / rate["proxy"]
    return Result("parts", ours, reference, reference / ours, "us of processor time a call", ROUNDS, also)


def parts_of(name: str, call_us: float, load: Calls, pid: int, directory: Path) -> dict[str, float]:
    """What each part takes of the `call_us` of a call, where the process `pid` and its descendants serve this load.

    The load is to last LOOKED_SECONDS. Raises: as `_looks`.
    """
    shares = _shares(_looks(load, pid, directory / f"{name}.perf"))
    parts = {part: call_us * shares.get(part, 0.0) for part in PARTS}
    say(f"{name}: {call_us:.1f} us, " + ", ".join(f"{part} {us:.1f}" for part, us in parts.items()))
    return {f"{name}_{part}_us": us for part, us in parts.items()} | {f"{name}_us": call_us}


def _looks(load: Calls, pid: int, file: Path) -> list[list[tuple[str, str]]]:
    """What perf saw each time: symbols and files, the innermost first. Raises: RuntimeError where it may not look."""
    perf = tool("perf")
    pids = ",".join(map(str, family(pid)))
    record = [perf, "record", "-e", "cpu-clock", "-F", str(_LOOKS_PER_SECOND), "-g", "-p", pids, "-o", str(file)]
    with subprocess.Popen(
        [*record, "--", "sleep", str(_SECONDS)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as looking:
        load.run(LOOKED_SECONDS, cores()[1])
        _, said = looking.communicate()
    if looking.returncode != 0:
        raise RuntimeError(f"perf may not look at what others do: {said.strip()}")
    script = [perf, "script", "-i", str(file), "-F", "ip,sym,dso"]
    told = subprocess.run(script, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [[_frame(line) for line in look.splitlines() if line.strip()] for look in told.split("\n\n") if look.strip()]


def _frame(line: str) -> tuple[str, str]:
    """Of `address symbol (file)`."""
    symbol, _, file = line.strip().rpartition(" (")
    return symbol.partition(" ")[2], file.rstrip(")").rpartition("/")[2]


def _shares(looks: Sequence[Sequence[tuple[str, str]]]) -> dict[str, float]:
    found = Counter(_part(look) for look in looks if look)
    return {part: count / found.total() for part, count in found.items()}


def _part(look: Sequence[tuple[str, str]]) -> str:
    """Whose work it is that was seen."""
    files = [file for _, file in look[:3]]
    if "kernel" in files[0]:
        asked = next((symbol for symbol, file in reversed(look) if "kernel" in file and symbol not in _ENTRY), "")
        return next((part for part, words in _KERNEL if any(word in asked for word in words)), "kernel")
    if files[0].startswith("libc.") and any(file.startswith("libsqlite") for file in files):
        return "sqlite"
    return next((part for part, names in _FILES if files[0].startswith(names)), "libraries")
