"""`sandbox`: one line for programs, a text for people, another node on demand, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cli.processes import Answer, Running, ask, finished, running
from tests.node_thread import run_in_thread
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.node import EvmNode
from tollkeeper.sandbox.wallets import derive_wallets

SLOW_SECONDS = 2


@pytest.fixture
def sandbox() -> Iterator[tuple[Running, dict[str, str]]]:
    with running("sandbox", "--port", "0", "--print-json") as process:
        yield process, json.loads(process.first_line())


def paid_gate(told: dict[str, str], path: str) -> tuple[str, str]:
    """A gate in front of the demo target's path, and a payment for it."""
    target = told["targetUrl"].removesuffix("/weather") + path
    gate = ask(f"{told['gatewayUrl']}/api/v1/paygates", body={"targetUrl": target, "price": "0.01"}).json()
    challenge = ask(gate["accessUrl"]).json()
    return gate["accessUrl"], Buyer(derive_wallets().buyer).sign(challenge)


def call_aside(url: str, payment: str, answers: list[Answer | Exception]) -> threading.Thread:
    def call() -> None:
        try:
            answers.append(ask(url, headers={"X-Payment": payment}))
        except (OSError, urllib.error.URLError) as error:
            answers.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread


def wait_until_paid_by(told: dict[str, str], payment: str) -> None:
    """Until a call has taken the credit that was bought with the payment."""
    deadline = time.monotonic() + 30
    held: list[dict[str, Any]] = []
    while not held or held[0]["remaining"]:
        assert time.monotonic() < deadline
        answer = ask(f"{told['gatewayUrl']}/api/v1/credits", headers={"X-Payment": payment})
        held = answer.json().get("data", [])
        time.sleep(0.05)


def wait_until_closed(told: dict[str, str]) -> None:
    """Until the gateway takes no more connections."""
    place = urlsplit(told["gatewayUrl"])
    assert place.hostname is not None
    assert place.port is not None
    deadline = time.monotonic() + 30
    with contextlib.suppress(ConnectionError):
        while True:
            socket.create_connection((place.hostname, place.port)).close()
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_print_json_says_one_line_and_nothing_else(sandbox: tuple[Running, dict[str, Any]]) -> None:
    process, told = sandbox
    assert set(told) == {
        "gatewayUrl",
        "hubUrl",
        "rpcUrl",
        "targetUrl",
        "payTo",
        "buyerKey",
        "buyerAddress",
        "token",
        "solana",
    }
    assert set(told["solana"]) == {"rpcUrl", "payTo", "buyerKey", "buyerAddress", "token"}
    assert ask(f"{told['gatewayUrl']}/readyz").status == 200
    assert ask(f"{told['hubUrl']}/readyz").status == 200
    assert ask(told["targetUrl"]).status == 200
    process.process.send_signal(signal.SIGTERM)
    assert process.exit_code() == 0
    assert process.process.stdout is not None
    assert process.process.stdout.read() == b""


def test_a_call_accepted_before_sigterm_is_finished_and_then_the_process_ends(
    sandbox: tuple[Running, dict[str, str]],
) -> None:
    process, told = sandbox
    url, payment = paid_gate(told, f"/slow?seconds={SLOW_SECONDS}")
    answers: list[Answer | Exception] = []
    thread = call_aside(url, payment, answers)
    wait_until_paid_by(told, payment)
    process.process.send_signal(signal.SIGTERM)
    wait_until_closed(told)
    thread.join()
    (answer,) = answers
    assert isinstance(answer, Answer), answer
    assert answer.status == 200
    assert answer.json() == {"sleptSeconds": SLOW_SECONDS}
    assert process.exit_code() == 0


def test_a_second_signal_ends_the_waiting(sandbox: tuple[Running, dict[str, str]]) -> None:
    process, told = sandbox
    url, payment = paid_gate(told, "/slow?seconds=60")
    answers: list[Answer | Exception] = []
    thread = call_aside(url, payment, answers)
    wait_until_paid_by(told, payment)
    began = time.monotonic()
    process.process.send_signal(signal.SIGTERM)
    wait_until_closed(told)  # of two signals at once a process may see one
    process.process.send_signal(signal.SIGTERM)
    assert process.exit_code() == 0
    assert time.monotonic() - began < 30
    thread.join()


def test_people_get_a_gate_and_lines_to_pay_for_it_on_either_chain() -> None:
    with running("sandbox", "--port", "0") as process:
        assert process.process.stdout is not None
        text = ""
        while "Ctrl-C" not in text:
            text += process.process.stdout.readline().decode()
        line = next(line for line in text.splitlines() if "X-Payment" in line)
        url, header = line.split("'")[1], line.split("'")[3]
        calls = [ask(url, headers=dict([header.split(": ", 1)])) for _ in range(4)]
        lines = [shlex.split(line)[1:] for line in text.splitlines() if "tollkeeper pay" in line]
        paid = [finished(*line) for line in lines]
    for one, network in zip(paid, ("base-sepolia", "solana-devnet"), strict=True):
        assert one.returncode == 0, one.stderr
        assert json.loads(one.stdout)["city"] == "Oslo"
        assert f"paying 0.01 USDC on {network}" in one.stderr
    assert [call.status for call in calls] == [200, 200, 200, 402]
    assert calls[0].json()["city"] == "Oslo"


def test_another_node_takes_the_place_of_the_embedded_chain(tmp_path: Path) -> None:
    with run_in_thread(EvmNode()) as node:
        arguments = ("sandbox", "--port", "0", "--print-json", "--rpc-url", node.url, "--data-dir", tmp_path)
        for _ in range(2):  # the chain is still there, so the database may be used again
            with running(*arguments) as process:
                told = json.loads(process.first_line())
                assert told["rpcUrl"] == node.url
                url, payment = paid_gate(told, "/weather")
                assert ask(url, headers={"X-Payment": payment}).status == 200
                process.process.send_signal(signal.SIGTERM)
                assert process.exit_code() == 0
        owner = derive_wallets().owner.address
        assert asyncio.run(balance(node.url, told["token"], owner)) == 20_000


async def balance(rpc_url: str, token: str, holder: str) -> int:
    async with Buyer(derive_wallets().buyer) as buyer:
        return await buyer.balance_micro(rpc_url, token, holder)


def test_a_node_that_does_not_answer_is_said() -> None:
    done = finished("sandbox", "--port", "0", "--rpc-url", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (3, "")
    assert "http://127.0.0.1:9 (--rpc-url) does not serve" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--rpc-url", "--relayer-key", "--log-level", "--engine"])
def test_an_option_that_cannot_be_read_is_named(option: str) -> None:
    done = finished("sandbox", "--port", "0", option, "nonsense")
    assert done.returncode == 2
    assert f"Invalid value: {option}" in done.stderr


def test_the_database_of_a_chain_that_is_gone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sandbox.db").write_bytes(b"")
    done = finished("sandbox", "--port", "0", "--data-dir", tmp_path)
    assert done.returncode == 3
    assert "earlier sandbox" in done.stderr


@pytest.mark.parametrize(
    ("words", "hidden", "named"),
    [
        (("demo",), ("solders", "pyrevm", "eth"), "solders and pyrevm missing"),
        (("sandbox",), ("solders",), "solders missing"),
        (("demo", "--engine", "pyevm"), ("eth_tester",), "pyevm missing"),
    ],
)
def test_without_the_embedded_chains_one_line_says_what_brings_them(
    tmp_path: Path, words: tuple[str, ...], hidden: tuple[str, ...], named: str
) -> None:
    """As after a plain `pip install`."""
    program = tmp_path / "without.py"
    program.write_text(
        "import sys\n"
        "class Hiding:\n"
        "    def __init__(self, finder):\n"
        "        self.finder = finder\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        return None if name in {hidden} else self.finder.find_spec(name, path, target)\n"
        "sys.meta_path[:] = map(Hiding, sys.meta_path)\n"
        "from tollkeeper.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(named)
    assert "pip install '.[sandbox]'" in line
