"""A process that serves is started without the library that reads command lines, where its command is spelled plainly.

What is spelled otherwise is read by that library; both start the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.cli import processes
from tests.cli.processes import ask, clean_environment, interruptible
from tollkeeper.cli.main import read_plain
from tollkeeper.settings.model import Role

# An interpreter is started for each: it is about starting.
finished = partial(processes.finished, is_forked=False)
running = partial(processes.running, is_forked=False)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("serve", {}),
        ("serve --config a.toml", {"config": "a.toml"}),
        ("serve --port 0 --host ::1", {"port": "0", "host": "::1"}),
        ("serve --workers 4 --config a --port 08402", {"workers": "4", "config": "a", "port": "8402"}),
    ],
)
@pytest.mark.parametrize("role", list(Role))
def test_a_plain_command_line_is_read(role: Role, words: str, options: dict[str, str]) -> None:
    assert read_plain(words.replace("serve", role.value).split(" ")) == (role, options)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--help",
        "--version",
        "demo",
        "init --dir x",
        "serve --help",
        "serve --port",
        "serve --port=1",
        "serve --port 65536",
        "serve --port -1",
        "serve --port 1.5",
        "serve --port ٣",
        "serve --port x",
        "serve --workers 0",
        "serve --config --port",
        "serve --config a --config b",
        "serve --host ",
        "serve --share-database",
        "hub --share-database --port 1",
        "serve a b",
        "serve --colour red",
        "Serve",
    ],
)
def test_everything_else_is_left_to_the_library(words: str) -> None:
    assert read_plain(words.split(" ")) is None


@pytest.fixture
def config(tmp_path: Path) -> Path:
    assert finished("init", "--dir", tmp_path, "--rpc-url", "http://127.0.0.1:1").returncode == 0
    return tmp_path / "tollkeeper.toml"


@pytest.mark.parametrize("port", [("--port", "0"), ("--port=0",)], ids=["plain", "otherwise"])
def test_both_ways_serve(config: Path, port: tuple[str, ...]) -> None:
    with running("serve", "--config", config, *port, environ={"TOLLKEEPER_LOG_FORMAT": "json"}) as program:
        url = program.wait_for_event("serving")["url"]
        assert ask(f"{url}/healthz").status == 200


@pytest.mark.parametrize("words", [("--config", "missing.toml"), ("--config=missing.toml",)])
def test_both_ways_refuse_alike(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = finished("serve", *(word.replace("missing", str(tmp_path / "missing")) for word in words))
    assert (done.returncode, done.stdout) == (3, "")
    assert "missing.toml" in done.stderr


def test_a_serving_process_holds_no_reader_of_command_lines_and_no_framework_that_it_does_not_use(
    config: Path, tmp_path: Path
) -> None:
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import atexit, sys\n"
        "from tollkeeper import cli\n"
        "sys.argv = ['tollkeeper', *sys.argv[sys.argv.index('tollkeeper.cli') + 1 :]]\n"
        "atexit.register(lambda: print('LOADED', *sys.modules, flush=True))\n"
        "cli.main()\n"
    )
    under = (sys.executable, str(wrapper))
    environ = {"TOLLKEEPER_LOG_FORMAT": "json", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with running("serve", "--config", config, "--port", "0", environ=environ, under=under) as program:
        program.wait_for_event("serving")
        program.process.terminate()
        assert program.process.wait(30) == 0
        assert program.process.stdout is not None
        (loaded,) = [line for line in program.process.stdout.read().decode().splitlines() if line.startswith("LOADED")]
    packages = {name.partition(".")[0] for name in loaded.split()}
    assert "litestar" in packages
    assert packages.isdisjoint({"typer", "rich", "pydantic", "pydantic_core", "attrs"}), "the command line's"
    assert packages.isdisjoint({"obstore", "asyncpg", "jwt", "jinja2"}), "imported where they are first used"


@pytest.mark.parametrize("option", ["--config {}", "--config={}"], ids=["plain", "otherwise"])
def test_an_interrupt_before_it_serves_ends_it_without_a_traceback(tmp_path: Path, option: str) -> None:
    endless = tmp_path / "endless.toml"
    os.mkfifo(endless)  # reading its configuration waits for ever
    words = option.format(endless).split(" ")
    process = subprocess.Popen(
        interruptible("serve", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
    )
    with endless.open("wb"):  # returns once the process reads
        process.send_signal(signal.SIGINT)
        said, wrote = process.communicate(timeout=30)
    assert (process.returncode, said, b"Traceback" in wrote) == (130, b"", False)
