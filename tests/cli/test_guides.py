"""The commands of the guides for owners, buyers and operators, in their order, as they stand there."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import ask, clean_environment, command, finished, interruptible, running
from tests.cli.program import PAYEE
from tests.interop.local_server import Reply, serving
from tests.interop.stack import Stack, sandbox
from tests.ports import free_port
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets

APART = ("init", "init", "config", "hub", "config", "gateway")
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


def operator_lines() -> list[str]:
    """The commands of the operator's guide, and the restart between them, each in one line."""
    text = Path("docs", "guide-operator.md").read_text().replace("\\\n", " ")
    return re.findall(r"^ {4,7}(?:tollkeeper )?((?<=tollkeeper ).*|\(restart the server\).*)$", text, re.MULTILINE)


def test_the_operator_s_guide_is_run_from_start_to_end(embedded_chain: ChainUnderTest, tmp_path: Path) -> None:
    """Who follows it funds accounts, which here have the money of test wallets, and is told a key's name by a list."""
    ports = {name: free_port() for name in ("serve", "hub", "gateway")}
    own = tmp_path / "etc" / "tollkeeper.toml"
    deployer = tmp_path / "deploy.key"
    deployer.write_text(embedded_chain.wallets.faucet.private_key_hex)
    deployer.chmod(0o600)
    listed = ""

    def mend(line: str) -> str:
        pay = "gateway" if "gateway" in line else "serve"
        for placeholder, meant in (
            ("/etc/tollkeeper", str(own.parent)),
            ("--config tollkeeper.toml", f"--config {own}"),
            ("--dir hub", f"--dir {tmp_path}/hub"),
            ("--dir gateway", f"--dir {tmp_path}/gateway"),
            ("--config hub", f"--config {tmp_path}/hub"),
            ("--config gateway", f"--config {tmp_path}/gateway"),
            ("https://node.example.org", embedded_chain.url),
            ("https://hub.example.org", f"http://127.0.0.1:{ports['hub']}"),
            ("https://pay.example.org", f"http://127.0.0.1:{ports[pay]}"),
            ("0x...", PAYEE),
            ("deploy.key", f"{deployer} --config {own}"),
            ("tollkeeper-backup.db", str(tmp_path / "tollkeeper-backup.db")),
        ):
            line = line.replace(placeholder, meant)
        return line.replace("e-1f2e3d4c", listed)

    ran = []
    for line in operator_lines():
        words = ["serve", "--config", str(own)] if line.startswith("(") else shlex.split(mend(line), comments=True)
        ran.append(words[0])
        if words[0] in ports:
            here = {"TOLLKEEPER_PORT": str(ports[words[0]])}
            with running(*words, environ=here) as program:
                program.wait_for_event("serving")
                assert ask(f"http://127.0.0.1:{ports[words[0]]}/healthz").status == 200, line
                program.process.terminate()
                assert program.exit_code() == 0, program.wrote
            continue
        done = finished(*words)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if words[:2] == ["keys", "list"]:
            listed = re.findall(r"\be-[0-9a-f]{8}\b", done.stdout)[-1]
        if words[0] == "init":
            folder = Path(words[words.index("--dir") + 1])
            if (folder / "keys" / "signer.key").exists():
                (folder / "keys" / "signer.key").write_text(embedded_chain.wallets.relayer.private_key_hex)
            if folder.name == "hub":
                text = (folder / "tollkeeper.toml").read_text()
                trusted = f'trusted_issuers = ["http://127.0.0.1:{ports["gateway"]}"]\n'
                (folder / "tollkeeper.toml").write_text(trusted + text)
    assert ran == [
        *["init", "config", "serve", "keys", "serve", "keys", "keys", "contracts", "backup", "restore", "db", "serve"],
        *APART,
    ]
