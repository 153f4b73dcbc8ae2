"""Programs of the tests without the start of an interpreter: forks of a process that has imported what they import.

Most of a start is importing, and a run of the tests starts some thousand programs. Each process of the tests has one
process more, which imports once, and from then on forks a program for each order that it is given, reaps it when told
to, and ends with the process of the tests.

A fork is what the start of an interpreter would have made of it: it has the environment, the directory, the words and
the three descriptors that it was given and no other; nothing that was forked had a second thread; it runs its module as
`python -m` does, and it ends as an interpreter ends. What our modules draw as they are imported is drawn anew. It
differs in this: it has imported more than it needs, and before it was told its settings; what it was given is frozen
for the collector; its memory is shared; it is a grandchild. Tests that are about starting, about memory, or about the
process as such start a real one (`is_forked=False`), and so does whatever changes the environment otherwise than by our
own settings, since others read theirs as they are imported, and a program under a clock of its own.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, AnyStr, Final

from tests.started import light_environment
from tollkeeper.serving.process.imports import leave_rich_out

_ROOT: Final = Path(__file__).parents[1]
_ORDER_BYTES_MAX: Final = 1 << 17
_OF_PYTEST: Final = "PYTEST_CURRENT_TEST"
_ENVIRONMENT: Final = light_environment(os.environ)  # before the first test changes anything
# What the programs begin with, and what they import only as they need it.
_IMPORTED: Final = (
    "tollkeeper.cli.commands",
    "tollkeeper.serving.config.check",
    "typer._adapters",
    "jwt",
    "tollkeeper.client.balances",
    "tollkeeper.client.gateway_account",
    "tollkeeper.gateway.app",
    "tollkeeper.sandbox.stack",
    "tollkeeper.serving.run",
    "tollkeeper.serving.books.reconciliation",
    "tollkeeper.serving.admin.rotation",
    "tollkeeper.web.dashboard.pages",
    "tollkeeper.web.dashboard.routes",
    "tests.gateway.gateway_process",
    "tests.hub.hub_process",
)
_READ_WHEN_USED: Final = frozenset({"XDG_STATE_HOME", _OF_PYTEST})  # variables, beside our own and those of S3
_FIRST_OF_ALL: Final = frozenset({"tests.faults.clocked"})  # what changes something before anything else is imported
_DRAWN: Final = "PROCESS_MARK"  # the one thing that our modules draw as they are imported


def start(command: Sequence[str], *, is_forked: bool = True, **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen(command, **options)`, as a fork where the command is `python -m MODULE ...` and may be one."""
    runs_a_module = list(command[:2]) == [sys.executable, "-m"]
    forks = is_forked and runs_a_module and command[2] not in _FIRST_OF_ALL and _changes_settings_alone(options["env"])
    return (_Forked if forks else subprocess.Popen)(command, **options)


def _changes_settings_alone(environ: Mapping[str, str]) -> bool:
    names = {name for name in environ.keys() | _ENVIRONMENT.keys() if environ.get(name) != _ENVIRONMENT.get(name)}
    return all(name.startswith(("TOLLKEEPER_", "AWS_")) or name in _READ_WHEN_USED for name in names)


class _Forking:
    """The process that forks programs, as the tests see it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_asks = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
                env=_ENVIRONMENT,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._line.close()
        self._process.wait()

    def ask(self, order: dict[str, object], *descriptors: int) -> int:
        """The number that is the answer. Raises: RuntimeError, where the process is gone."""
        text = json.dumps(order).encode()
        assert len(text) < _ORDER_BYTES_MAX
        with self._one_asks:
            socket.send_fds(self._line, [text], descriptors)
            answer = self._line.recv(64)
        if not answer:
            msg = f"the process that forks programs has ended (exit code {self._process.wait()})"
            raise RuntimeError(msg)
        return int(answer)


_made = functools.cache(_Forking)
_one_makes = threading.Lock()


def _forking() -> _Forking:
    """The one there is, also for two threads that are the first to ask: a program is reaped by who forked it."""
    with _one_makes:
        return _made()


class _Forked(subprocess.Popen[AnyStr]):
    """A program that was forked. It is the same as any, but made and reaped by the process that forks."""

    def _execute_child(self, *given: Any) -> None:
        """What `Popen` calls once it has made its pipes, of which it names both ends, -1 for none."""
        args, _, preexec_fn, _, pass_fds, cwd, env, _, _, _, *ends = given[:16]
        assert preexec_fn is None
        assert not pass_fds
        descriptors = [own if end == -1 else end for own, end in enumerate((ends[0], ends[3], ends[5]))]
        order = {"words": args[2:], "environment": dict(env), "directory": str(cwd or Path.cwd())}
        self.pid = _forking().ask(order, *descriptors)
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]  # private, as all that is overridden here

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As `os.waitpid`."""
        descriptor = os.pidfd_open(self.pid)
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            if not ended.poll(0 if wait_flags & os.WNOHANG else None):
                return 0, 0
        finally:
            os.close(descriptor)
        return self.pid, _forking().ask({"reaped": self.pid})

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        """As that of `Popen`, which does not ask `_try_wait`."""
        lock: threading.Lock = self._waitpid_lock  # type: ignore[attr-defined]  # private
        if self.returncode is None and lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                lock.release()
        return self.returncode


def _next_program(line: socket.socket) -> list[str]:
    """Carries out orders; returns in each fork, as what was ordered, with the words that follow `-m`."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(line, _ORDER_BYTES_MAX, 3)
        if not text:
            os._exit(0)  # the tests are over
        order = json.loads(text)
        if "reaped" in order:
            _, answer = os.waitpid(order["reaped"], 0)
        else:
            assert len(list(Path("/proc/self/task").iterdir())) == 1  # another thread would stand still in the fork
            answer = os.fork()
            if not answer:
                break
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(str(answer).encode())
    line.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    sys.path[0] = order["directory"]
    _draw()
    words: list[str] = order["words"]
    return words


def _draw() -> None:
    drawn = os.urandom(4).hex()
    holders = [module for name, module in sys.modules.items() if name.startswith("tollkeeper.")]
    for module in holders:
        if hasattr(module, _DRAWN):
            setattr(module, _DRAWN, drawn)


if __name__ == "__main__":
    gc.disable()
    leave_rich_out()
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.enable()
    gc.freeze()
    sys.argv = _next_program(socket.socket(fileno=int(sys.argv[1])))
    sys.modules.pop(sys.argv[0], None)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
