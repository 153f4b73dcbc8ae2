"""A forked program is like one that an interpreter was started for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import clean_environment
from tests.forked import start

# A module that tells what it is, and ends as told.
PROGRAM = """
import gc, json, os, random, signal, sys, threading, uuid
import tollkeeper.api
if __name__ == "__main__":
    told = {
        "argv": sys.argv[1:],
        "file": sys.argv[0],
        "spec": sys.modules["__main__"].__spec__.name,
        "environ": dict(os.environ),
        "directory": os.getcwd(),
        "path": sys.path[0],
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        "threads": threading.active_count(),
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "flags": str(sys.flags),
        "recursion": sys.getrecursionlimit(),
        "collects": gc.isenabled(),
        "read": sys.stdin.read(),
        "is_buffered": not sys.stdout.line_buffering,
    }
    drawn = [tollkeeper.api.PROCESS_MARK, random.random(), uuid.uuid4().hex]
    print(json.dumps([told, drawn]))
    print("said", file=sys.stderr)
    exec(sys.argv[1])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "telling.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(end: str, *, is_forked: bool, **environ: str) -> tuple[Any, list[Any], str, int]:
    """What it tells and draws, its standard error, its exit code."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "telling", end]
    state = {"XDG_STATE_HOME": str(Path.cwd())}  # which each environment has of its own
    with start(command, is_forked=is_forked, text=True, env=clean_environment(state | environ), **pipes) as process:
        assert (type(process) is not subprocess.Popen) is is_forked
        said, wrote = process.communicate("given", timeout=60)
    told, drawn = json.loads(said)
    return told, drawn, wrote, process.returncode


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_a_fork_finds_and_leaves_what_a_program_would(place: Path, end: str, code: int) -> None:
    told, drawn, wrote, ended = run(end, is_forked=True, TOLLKEEPER_TEST="here")
    really, _, really_wrote, really_ended = run(end, is_forked=False, TOLLKEEPER_TEST="here")
    assert told == really
    assert (told["read"], told["environ"]["TOLLKEEPER_TEST"], told["directory"]) == ("given", "here", str(place))
    assert ended == really_ended == code
    assert wrote.splitlines()[:1] == really_wrote.splitlines()[:1] == ["said"]
    assert wrote.splitlines()[-1] == really_wrote.splitlines()[-1]
    again, drawn_again, _, _ = run(end, is_forked=True)
    assert "TOLLKEEPER_TEST" not in again["environ"]
    assert not set(drawn) & set(drawn_again)


def test_a_fork_is_stopped_waited_for_and_killed_by_its_own_id(place: Path) -> None:
    (place / "waiting.py").write_text("import time\nprint('runs', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "waiting"]
    with start(command, stdout=subprocess.PIPE, env=clean_environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{process.pid}/stat")
        deadline = time.monotonic() + 30
        while state.read_text().rpartition(") ")[2][0] != "T":
            assert time.monotonic() < deadline
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        assert process.poll() == -signal.SIGKILL
        assert process.stdout.read() == b""
    assert not state.exists()


def test_what_others_read_as_they_are_imported_is_read_by_an_interpreter_of_its_own() -> None:
    environ = clean_environment({"SSL_CERT_FILE": "/nowhere"})
    with start([sys.executable, "-m", "this"], stdout=subprocess.DEVNULL, env=environ) as process:
        assert type(process) is subprocess.Popen
