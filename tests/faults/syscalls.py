"""What a process asked of its kernel, in order: bytes written to the database's log, its syncs, bytes sent (F15).

A killed process tests no fsync: the page cache outlives it. So the calls themselves are watched, by `strace`.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_WATCHED: Final = "trace=write,writev,pwrite64,sendto,sendmsg,fsync,fdatasync"
# With the names of files, and every byte of everything in hex; a page of the log and a request's head are shorter.
_OPTIONS: Final = ("-f", "-y", "-xx", "-s", "16384", "--seccomp-bpf", "-e", _WATCHED)
_CALL: Final = re.compile(r"^(?P<pid>\d+) +(?P<name>\w+)\(\d+<(?P<file>[^>]*)>(?P<rest>.*)$")
_RESUMED: Final = re.compile(r"^(?P<pid>\d+) +<\.\.\. f(?:data)?sync resumed>.*= 0$")
_DATA: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_END_SECONDS: Final = 60


def watched_into(trace: Path) -> tuple[str, ...]:
    """What a command is put behind so that its calls are written to that file; its process id stays its own."""
    trace.parent.mkdir(parents=True, exist_ok=True)
    return (_strace(), "-D", *_OPTIONS, "-o", str(trace))


def failing(call: str, number: int, fault: str) -> tuple[str, ...]:
    """What a command is put behind so that, in each thread, that system call fails as it is made for that time.

    `fault` is "signal=KILL", or "error=" and a name.
    """
    injected = ("-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={number}")
    # Without --seccomp-bpf, under which strace 6.1 sends no signal but at the first call.
    return (_strace(), "-D", "-f", "-o", os.devnull, *injected)


def refused(calls: str, pid: int) -> tuple[str, ...]:
    """A command that, while it runs, has each of those system calls of a running process fail with EIO."""
    injected = ("-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO")
    return (_strace(), "-f", "-o", os.devnull, "-p", str(pid), *injected)


def slowed(calls: str, seconds: float) -> tuple[str, ...]:
    """What a command is put behind so that each of those system calls takes its thread so long, as on a slow disk."""
    delay_us = int(seconds * 1_000_000)
    injected = ("-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={delay_us}")
    return (_strace(), "-D", "-f", "--seccomp-bpf", "-o", os.devnull, *injected)


def _strace() -> str:
    found = shutil.which("strace")
    assert found is not None, "strace is missing: apt-get install strace"
    return found


def wait_for_end(trace: Path, pid: int) -> str:
    """The whole trace, once its process has ended."""
    last = re.compile(rf"^{pid} +\+\+\+ ", re.MULTILINE)
    deadline = time.monotonic() + _END_SECONDS
    while last.search(seen := trace.read_text("utf-8")) is None:
        assert time.monotonic() < deadline, "the watched process did not end"
        time.sleep(0.2)
    return seen


def assert_safe_before_sent(trace: str, promises: Sequence[tuple[bytes, bytes]]) -> None:
    """Of each: what was stored, and what was sent for it. A sync that began after the one ended before the other."""
    log, sockets, syncs = _Written(), _Written(), _Syncs()
    for number, line in enumerate(trace.splitlines()):
        if (resumed := _RESUMED.match(line)) is not None:
            syncs.end(resumed["pid"], number)
        if (call := _CALL.match(line)) is None:
            continue
        file = _shown(call["file"])
        if file.endswith("-wal") and call["name"].endswith("sync"):
            syncs.begin(call["pid"], number)
            if call["rest"].endswith("= 0"):
                syncs.end(call["pid"], number)
        elif file.endswith("-wal"):
            log.add(call["rest"], number)
        elif file.startswith("socket:"):
            sockets.add(call["rest"], number)
    for stored, sent in promises:
        safe, leaves = syncs.first_end_after(log.first_line_of(stored)), sockets.first_line_of(sent)
        assert safe < leaves, f"on the disk at line {safe} of the trace, sent at line {leaves}: {stored!r}"


@dataclass
class _Written:
    """What was written, in order, and the lines at which each part of it began to be."""

    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, arguments: str, line: int) -> None:
        self.starts.append(len(self.data))
        self.lines.append(line)
        for part in _DATA.findall(arguments):
            self.data += bytes.fromhex(part.replace("\\x", ""))

    def first_line_of(self, searched: bytes) -> int:
        place = self.data.find(searched)
        assert place >= 0, searched
        return self.lines[bisect_right(self.starts, place) - 1]


@dataclass
class _Syncs:
    """Those of the log that ended well: the lines where each began, and ended."""

    running: dict[str, int] = field(default_factory=dict)
    spans: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, thread: str, line: int) -> None:
        self.running[thread] = line

    def end(self, thread: str, line: int) -> None:
        if thread in self.running:
            self.spans.append((self.running.pop(thread), line))

    def first_end_after(self, line: int) -> int:
        """Of those that began later: any of them, for the log is also synced by whoever folds it into the file."""
        ends = [end for begin, end in self.spans if begin > line]
        assert ends, "nothing was synced after it was written"
        return min(ends)


def _shown(file: str) -> str:
    return bytes.fromhex(file.replace("\\x", "")).decode() if file.startswith("\\x") else file
