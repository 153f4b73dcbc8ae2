"""A running sandbox (gateway, hub, chain) as the interop tests see it: addresses, and what anyone could ask of them."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

from tests.described_answers import seen
from tests.engines import module_with
from tests.started import light_environment
from tollkeeper.core.solana.programs import associated_token_account

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator
    from email.message import Message

START_TIMEOUT_SECONDS: Final = 60
STOP_TIMEOUT_SECONDS: Final = 20
BALANCE_OF: Final = "0x70a08231"


@dataclasses.dataclass(frozen=True)
class OnSolana:
    """The sandbox's Solana chain, and who pays and is paid there."""

    rpc_url: str
    pay_to: str
    buyer_key: str
    buyer_address: str
    token: str

    def node(self, method: str, *params: object) -> Any:
        """What the chain's node answers."""
        _, answer = ask(self.rpc_url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        return answer["result"]

    def balance_micro(self, owner: str) -> int:
        """USDC of a wallet, in micro-units."""
        account = associated_token_account(owner, self.token)
        return int(self.node("getTokenAccountBalance", account)["value"]["amount"])


@dataclasses.dataclass(frozen=True)
class Stack:
    """What `tollkeeper sandbox --print-json` says about itself, under Python's names."""

    gateway_url: str
    hub_url: str
    rpc_url: str
    target_url: str
    pay_to: str
    buyer_key: str
    buyer_address: str
    token: str
    solana: OnSolana

    def create_gate(self, **fields: object) -> dict[str, Any]:
        """The PayGate made of these fields. Raises AssertionError unless it is answered with 201."""
        status, gate = ask(f"{self.gateway_url}/api/v1/paygates", fields)
        assert status == 201, gate
        return gate

    def challenge(self, gate: dict[str, Any]) -> dict[str, Any]:
        """The 402 body that an unpaid call of the gate gets."""
        status, body = ask(gate["accessUrl"])
        assert status == 402, body
        return body

    def balance_micro(self, address: str) -> int:
        """USDC of an address, in micro-units, as the chain's node tells it."""
        data = BALANCE_OF + address.removeprefix("0x").lower().rjust(64, "0")
        parameters = [{"to": self.token, "data": data}, "latest"]
        call = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": parameters}
        _, answer = ask(self.rpc_url, call)
        return int(answer["result"], 16)


def ask(url: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of a GET, or of a POST where there is a body to send."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})  # noqa: S310  own addresses
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  own addresses
            return _told(request, response.status, response.headers, response.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return _told(request, refused.code, refused.headers, refused.read())


def _told(request: urllib.request.Request, status: int, headers: Message, content: bytes) -> tuple[int, dict[str, Any]]:
    seen(request.get_method(), request.full_url, status, dict(headers.items()), content)
    return status, json.loads(content)


@contextmanager
def sandbox(log: pathlib.Path, *arguments: str) -> Iterator[Stack]:
    """A sandbox in a process of its own, its log in a file. Raises RuntimeError with the log's end if it fails."""
    module = module_with(log.with_name("sandbox.db"), "tollkeeper.cli")
    command = [sys.executable, "-m", *module, "sandbox", "--port", "0", "--print-json", *arguments]
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    environment = light_environment(os.environ)
    with (
        log.open("w") as log_file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log_file, env=environment) as process,
    ):
        assert process.stdout is not None
        reader = threading.Thread(target=read_lines, args=(process.stdout, lines))
        reader.start()
        try:
            yield parse(first_of(lines, log))
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join()


def read_lines(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Every line until the process ends, then an empty one: a pipe that nobody reads would stop the process."""
    for line in stream:
        lines.put(line)
    lines.put(b"")


def first_of(lines: queue.SimpleQueue[bytes], log: pathlib.Path) -> bytes:
    """The first line. Raises RuntimeError with the log's end when the process ends or the time is up before it."""
    try:
        line = lines.get(timeout=START_TIMEOUT_SECONDS)
    except queue.Empty:
        line = b""
    if not line:
        raise RuntimeError(f"the sandbox did not start:\n{log.read_text()[-4000:]}")
    return line


def parse(line: bytes) -> Stack:
    """A Stack from the sandbox's one JSON line."""
    told = json.loads(line)
    return Stack(
        gateway_url=told["gatewayUrl"],
        hub_url=told["hubUrl"],
        rpc_url=told["rpcUrl"],
        target_url=told["targetUrl"],
        pay_to=told["payTo"],
        buyer_key=told["buyerKey"],
        buyer_address=told["buyerAddress"],
        token=told["token"],
        solana=OnSolana(
            rpc_url=told["solana"]["rpcUrl"],
            pay_to=told["solana"]["payTo"],
            buyer_key=told["solana"]["buyerKey"],
            buyer_address=told["solana"]["buyerAddress"],
            token=told["solana"]["token"],
        ),
    )
