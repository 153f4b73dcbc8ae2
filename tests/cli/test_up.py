"""`tollkeeper up`: from one's own API to the first sale, on the sandbox and on a configured network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import clean_environment, finished, interruptible
from tests.cli.program import PAYEE
from tests.interop.local_server import LocalServer, Reply, serving
from tests.ports import free_port
from tollkeeper.sandbox.wallets import derive_wallets


@pytest.fixture
def api() -> Iterator[LocalServer]:
    """Somebody's own API."""
    with serving(lambda _request: Reply(200, {"sky": "clear"})) as server:
        yield server


@contextmanager
def up(
    home: Path, *words: str | Path, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running `up` in this folder, with the link that it prints."""
    typed = interruptible("up", *words)
    with subprocess.Popen(
        typed, cwd=home, env=clean_environment(environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            link = next((line.split()[1] for line in lines if line.startswith("  link ")), "")
            if not link:
                assert process.stderr is not None
                raise AssertionError(process.stderr.read())
            yield link, process
        finally:
            if process.poll() is None:
                process.kill()


def ended(process: subprocess.Popen[str], ending: signal.Signals) -> str:
    """Standard error of an `up` that was told to end; it must end well."""
    process.send_signal(ending)
    _, wrote = process.communicate(timeout=90)
    assert process.returncode == 0, wrote
    return wrote


def buys(link: str, *words: str | Path) -> None:
    paid = finished("pay", link, *words, "--max", "0.01")
    assert paid.returncode == 0, paid.stderr
    assert json.loads(paid.stdout) == {"sky": "clear"}


def is_gone(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):  # noqa: S310 - our own
            return False
    except OSError as error:
        return not hasattr(error, "code")


def told_of_sale(process: subprocess.Popen[str]) -> str:
    """The line that tells the first served call."""
    assert process.stdout is not None
    return next(line for line in iter(process.stdout.readline, "") if " GET 200 served " in line)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_api_is_sold_in_the_sandbox_by_one_command(api: LocalServer, tmp_path: Path, ending: signal.Signals) -> None:
    words = (f"{api.url}/weather", "--price", "0.01", "--credits", "10", "--port", "0")
    with up(tmp_path, *words) as (link, process):
        buys(link, "--test-wallet")
        assert told_of_sale(process)
        wrote = ended(process, ending)
    assert [request.path for request in api.forwarded] == ["/weather"]
    assert "The sandbox has ended, and its PayGate with it." in wrote
    assert is_gone(link)


def test_an_api_is_sold_on_a_configured_network_by_six_commands(
    api: LocalServer, tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    """After the node's own, two: a configuration, and money for gas. Then the API is up, and a wallet buys."""
    port = str(free_port())
    made = finished(
        "init", "--dir", tmp_path, "--rpc-url", anvil_fiat_token.url, "--port", port, "--payment-address", PAYEE
    )
    assert made.returncode == 0, made.stderr
    (signer,) = [word for word in made.stdout.split() if word.startswith("0x")]
    funded = {"jsonrpc": "2.0", "id": 1, "method": "anvil_setBalance", "params": [signer, hex(10**18)]}
    request = urllib.request.Request(  # noqa: S310 - our own
        anvil_fiat_token.url, json.dumps(funded).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own
        assert "error" not in json.loads(answer.read())
    key = tmp_path / "buyer.key"
    key.write_text(derive_wallets().buyer.private_key_hex)
    key.chmod(0o600)
    token = {"TOLLKEEPER_ASSET_NAME_BASE_SEPOLIA": anvil_fiat_token.token_name}
    for _ in range(2):  # a gate without an owner is made and managed by its token; the second start finds the database
        with up(tmp_path, f"{api.url}/weather", "--price", "0.01", environ=token) as (link, process):
            assert link.startswith(f"http://127.0.0.1:{port}/")
            buys(link, "--key-file", key)
            assert told_of_sale(process)
            wrote = ended(process, signal.SIGINT)
        assert "Its PayGate is sold again when the gateway runs." in wrote
        assert is_gone(link)


def test_a_gateway_that_runs_is_used_and_goes_on(api: LocalServer, tmp_path: Path) -> None:
    with up(tmp_path, f"{api.url}/a", "--price", "0.01", "--port", "0") as (first, _):
        gateway = first.rpartition("/")[0]
        with up(tmp_path, f"{api.url}/b", "--price", "0.01", "--gateway", gateway) as (second, process):
            wrote = ended(process, signal.SIGINT)
        assert "The gateway goes on" in wrote
        buys(second, "--test-wallet")


def test_nothing_is_left_running_where_the_gate_is_refused(api: LocalServer, tmp_path: Path) -> None:
    refused = finished("up", api.url, "--price", "free", "--port", "0", environ={"PWD": os.fspath(tmp_path)})
    assert (refused.returncode, "INVALID_AMOUNT" in refused.stderr) == (1, True), refused.stderr
