"""Uploads show on a terminal how far they are, and nowhere else (ux: progress of what takes long)."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from pathlib import Path

import pytest

from tests.cli.processes import clean_environment, command, finished
from tests.interop.stack import ask, sandbox
from tollkeeper.sandbox.wallets import derive_wallets

SIZE_BYTES = 200_000_000
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def at_a_terminal(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output (a file) and what a terminal of 100 columns was sent as standard error."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # how a terminal ends whose last program has left
                return
            shown.append(part)

    environ = clean_environment({"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "24"})
    process = subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=environ, start_new_session=True
    )
    os.close(theirs)
    reading = threading.Thread(target=read)
    reading.start()
    said, _ = process.communicate(timeout=90)
    reading.join(10)
    os.close(ours)
    return process.returncode, said.decode(), b"".join(shown).decode()


@pytest.mark.parametrize("what", ["create", "update"])
def test_an_upload_shows_its_progress_on_a_terminal_and_its_link_alone_in_a_pipe(tmp_path: Path, what: str) -> None:
    file, key = tmp_path / "large [final].bin", tmp_path / "wallet.key"
    with file.open("wb") as content:
        content.truncate(SIZE_BYTES)
    key.write_text(derive_wallets().owner.private_key_hex + "\n")
    key.chmod(0o600)
    with sandbox(tmp_path / "log.txt", "--data-dir", str(tmp_path / "data")) as stack:
        where = ("--gateway", stack.gateway_url, "--key-file", key)
        arguments: tuple[str | Path, ...] = ("create", "--price", "0.5", "--file", file)
        if what == "update":
            small = tmp_path / "small.bin"
            small.write_text("small")
            made = finished("paygate", "create", "--price", "0.5", "--file", small, *where)
            assert (made.returncode, ESCAPE.search(made.stderr), "%" in made.stderr) == (0, None, False)
            arguments = ("update", made.stdout.strip().rpartition("/")[2], "--file", file)
        code, said, shown = at_a_terminal("paygate", *arguments, *where)
        assert code == 0, shown
        link = said.split(" ")[0].strip()
        assert ask(link)[0] == 402
    assert len(said.splitlines()) == 1
    assert ESCAPE.search(said) is None
    text = ESCAPE.sub("", shown)
    percents = [int(found) for found in re.findall(r"(\d+)%", text)]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert len(set(percents)) >= 3, text
    assert "200.0/200.0 MB" in text
    assert "large [final].bin" in text  # a name is no markup
    assert "\x1b[?25h" in shown  # the cursor is back


def test_a_refused_upload_says_why_below_its_bar(tmp_path: Path) -> None:
    file, key = tmp_path / "x.bin", tmp_path / "wallet.key"
    with file.open("wb") as content:
        content.truncate(SIZE_BYTES)
    key.write_text(derive_wallets().owner.private_key_hex + "\n")
    key.chmod(0o600)
    with sandbox(tmp_path / "log.txt", "--data-dir", str(tmp_path / "data")) as stack:
        where = ("--gateway", stack.gateway_url, "--key-file", key)
        code, said, shown = at_a_terminal("paygate", "create", "--price", "free", "--file", file, *where)
    assert (code, said) == (1, "")
    assert "INVALID_AMOUNT" in shown
    assert "100%" not in shown  # it is told before the file has been sent
    assert "\x1b[?25h" in shown
    assert "Traceback" not in shown
