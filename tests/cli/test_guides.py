"""The commands of the guides for owners and buyers, in their order, as they stand there."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.processes import clean_environment, command, finished, interruptible
from tests.interop.local_server import Reply, serving
from tests.interop.stack import Stack, sandbox
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets

RUNNING = ("up", "--follow")  # until they are told to end


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


def commands_of(guide: str, home: Path, mend: Callable[[str], str]) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Each command of a guide with its words, to be run in this folder by one user."""
    environ = clean_environment({"XDG_STATE_HOME": str(home / "state")})
    for line in re.findall(r"^    tollkeeper (.*)$", Path("docs", guide).read_text(), re.MULTILINE):
        yield line, shlex.split(mend(line)), environ


def run(line: str, words: list[str], environ: dict[str, str], home: Path) -> None:
    if any(one in words for one in RUNNING):
        with subprocess.Popen(interruptible(*words), cwd=home, env=environ, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), line
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in {0, 130}, line
        return
    done = subprocess.run(command(*words), cwd=home, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (line, done.stderr)


def test_the_owner_s_guide_is_run_from_start_to_end(stack: Stack, tmp_path: Path) -> None:
    key = tmp_path / "wallet.key"
    key.write_text(derive_wallets().owner.private_key_hex)
    key.chmod(0o600)
    for name in ("report.pdf", "report-2.pdf"):
        (tmp_path / name).write_text(name)
    with serving(lambda _request: Reply(200, {"sky": "clear"})) as api:

        def mend(line: str) -> str:
            line = line.replace("{gateway_url}", stack.gateway_url)
            line = re.sub(r"https?://(localhost:3000|api\.example\.org)", api.url, line)
            return f"{line} --gateway {stack.gateway_url}" if line.startswith("up ") else line

        ran = []
        for line, words, environ in commands_of("guide-owner.md", tmp_path, mend):
            if "--follow" in words:  # somebody calls
                finished("pay", f"{stack.gateway_url}/weather", "--test-wallet")
            run(line, words, environ, tmp_path)
            ran.append(words[0])
    assert {"up", "login", "paygate", "requests", "stats"} <= set(ran)


def test_the_buyer_s_guide_is_run_from_start_to_end(stack: Stack, tmp_path: Path) -> None:
    for name, key in (
        ("wallet.key", derive_wallets().buyer.private_key_hex),
        ("solana.json", derive_solana_wallets().buyer.secret_key),
    ):
        (tmp_path / name).write_text(key)
        (tmp_path / name).chmod(0o600)
    there = {"network": "solana-devnet", "paymentAddress": stack.solana.pay_to}
    gate = stack.create_gate(targetUrl=stack.target_url, price="0.01", accepts=[there])

    def mend(line: str) -> str:
        line = line.replace("https://node.example.org", stack.solana.rpc_url)
        return line.replace("https://gate.example.org/weather", gate["accessUrl"])

    ran = []
    for line, words, environ in commands_of("guide-buyer.md", tmp_path, mend):
        run(line, words, environ, tmp_path)
        ran.append(words[0])
    assert ran.count("pay") >= 2
