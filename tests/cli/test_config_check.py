"""`config check` says what is unwise, asks nodes and accounts unless told not to, and names what it did not check."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cli.processes import ask, clean_environment, command, configured, finished
from tests.interop.local_server import Reply, Request, serving
from tests.node_thread import run_in_thread
from tollkeeper.core.evm.encoding import address_of_key, checksum_address
from tollkeeper.sandbox.evm.node import EvmNode
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_wallets

NOWHERE = "http://127.0.0.1:9"
IN_MEMORY = "/dev/shm"  # noqa: S108 - nothing is written there
OF_THE_MACHINE = ("TMPDIR", "ulimit -Hn")


@pytest.fixture(scope="module")
def node() -> Iterator[EvmNode]:
    with run_in_thread(EvmNode()) as running:
        yield running


@pytest.fixture(scope="module")
def solana() -> Iterator[SolanaNode]:
    with run_in_thread(SolanaNode()) as running:
        yield running


def checked(config: Path, *options: str, **environ: str) -> CompletedProcess[str]:
    named = {f"TOLLKEEPER_{name.upper()}": value for name, value in environ.items()}
    done = finished("config", "check", *options, "--config", config, environ=named)
    assert (done.stderr, "Traceback" in done.stdout) == ("", False)
    return done


def told(done: CompletedProcess[str], kind: str) -> list[str]:
    """Without what is said of the machine on which the tests run."""
    lines = [line.removeprefix(f"{kind}: ") for line in done.stdout.splitlines() if line.startswith(f"{kind}: ")]
    return [line for line in lines if not line.startswith(OF_THE_MACHINE)]


def named(done: CompletedProcess[str], kind: str = "warning") -> list[str]:
    return [line.partition(":")[0] for line in told(done, kind)]


@pytest.mark.parametrize(
    ("environ", "warned"),
    [
        ({}, []),
        ({"host": "0.0.0.0"}, ["public_url", "anonymous_paygates"]),  # noqa: S104 - what is warned of
        ({"host": "::", "public_url": "https://pay.example.org"}, []),
        ({"public_url": "https://pay.example.org"}, ["trusted_proxies"]),
        ({"public_url": "https://pay.example.org", "trusted_proxies": "10.0.0.0/8"}, ["trusted_proxies"]),
        ({"public_url": "https://pay.example.org", "trusted_proxies": "10.0.0.0/8, 127.0.0.1"}, []),
        ({"rpc_url_base_sepolia": "https://a.example/one, https://A.example/two"}, ["networks.base-sepolia.rpc_url"]),
        ({"rpc_url_base_sepolia": "https://a.example/one, https://b.example/one"}, []),
        ({"trusted_proxies": "0.0.0.0/0"}, ["trusted_proxies"]),
        ({"trusted_proxies": "::/0"}, ["trusted_proxies"]),
        ({"trusted_proxies": "0.0.0.0/1, 128.0.0.0/1"}, ["trusted_proxies"]),
        ({"trusted_proxies": "10.0.0.0/8, 104.16.0.0/13, 2a06:98c0::/29"}, []),
        ({"metrics_address": "0.0.0.0:8403"}, ["metrics_address"]),
        ({"metrics_address": "203.0.113.1:8403"}, []),  # an address of documentation
        ({"metrics_address": "8.8.8.8:8403"}, ["metrics_address"]),
        ({"metrics_address": ":::8403"}, ["metrics_address"]),
        ({"metrics_address": "metrics.example.org:8403"}, ["metrics_address"]),
        ({"metrics_address": "10.0.0.5:8403"}, []),
        ({"metrics_address": "127.0.0.1:8403"}, []),
        ({"trusted_issuers": "http://hub.example.org"}, ["trusted_issuers"]),
        ({"trusted_issuers": "http://127.0.0.1:8404, https://hub.example.org"}, []),
        ({"rpc_url_base_sepolia": "http://node.example.org/v2/key"}, ["networks.base-sepolia.rpc_url"]),
        ({"host": "::", "public_url": "https://pay.example", "anonymous_paygates": "create"}, ["anonymous_paygates"]),
        ({"anonymous_paygates": "create", "trusted_proxies": "127.0.0.1"}, ["anonymous_paygates"]),
    ],
)
def test_what_lies_open_is_warned_of(tmp_path: Path, environ: dict[str, str], warned: list[str]) -> None:
    config = configured(tmp_path, NOWHERE)
    assert named(checked(config, "--offline", **environ)) == warned


def test_a_hub_in_clear_text_is_warned_of_without_what_its_url_holds(tmp_path: Path) -> None:
    config = configured(tmp_path, "http://user:5ec2e7@node.example.org/5ec2e7")
    done = checked(config, "--offline", "--for", "gateway", hub_url="http://hub.example.org/x402")
    assert named(done) == ["hub_url", "networks.base-sepolia.rpc_url"]
    assert "http to hub.example.org" in done.stdout
    assert "5ec2e7" not in done.stdout


@pytest.mark.parametrize(
    ("network", "role", "price", "warned"),
    [
        ("base", "serve", "0.001", []),
        ("base", "serve", None, ["min_price"]),
        ("solana-mainnet", "hub", None, ["min_price"]),
        ("base", "gateway", None, []),
        ("base-sepolia", "serve", None, []),
    ],
)
def test_a_public_hub_of_real_money_that_settles_next_to_nothing_is_warned_of(
    tmp_path: Path, network: str, role: str, price: str | None, warned: list[str]
) -> None:
    config = configured(tmp_path, NOWHERE, network=network)
    environ = {"host": "::", "public_url": "https://pay.example.org", "hub_url": "https://hub.example.org"}
    least = {} if price is None else {"min_price": price}
    assert named(checked(config, "--offline", "--for", role, **environ, **least)) == warned


def test_what_was_not_checked_is_said(tmp_path: Path, node: EvmNode) -> None:
    config = configured(tmp_path, node.url)
    public, machine = told(checked(config), "not checked")
    assert "http://127.0.0.1:8402 lead here" in public
    assert all(line.endswith("`tollkeeper doctor` looks") for line in (public, machine))
    offline = told(checked(config, "--offline", trusted_issuers="https://hub.example.org"), "not checked")
    assert [line.split()[-1] for line in offline] == ["looks", "looks", "answer", "(--offline)"]
    apart = told(checked(config, "--for", "gateway", hub_url="https://hub.example.org"), "not checked")
    assert any("https://hub.example.org answer" in line for line in apart)


def test_a_node_of_another_chain_is_an_error_and_offline_nobody_is_asked(tmp_path: Path, node: EvmNode) -> None:
    config = configured(tmp_path, node.url, network="base")
    done = checked(config)
    assert (done.returncode, told(done, "error")) == (
        3,
        ["networks.base.rpc_url: node 1 is not used: the node's chain id is 84532, not 8453: name one that is of it"],
    )
    offline = checked(config, "--offline")
    assert (offline.returncode, told(offline, "error"), told(offline, "warning")) == (0, [], [])


def test_a_node_that_does_not_answer_is_a_warning(tmp_path: Path, node: EvmNode) -> None:
    config = configured(tmp_path, node.url)
    silent = checked(config, rpc_url_base_sepolia=NOWHERE)
    assert silent.returncode == 0
    assert [line.partition(" (")[0] for line in told(silent, "warning")] == [
        "networks.base-sepolia.rpc_url: no node answers"
    ]
    one_of_two = checked(config, rpc_url_base_sepolia=f"{node.url}, {NOWHERE}")
    assert "networks.base-sepolia.rpc_url: node 2 does not answer: check again when it does" in told(
        one_of_two, "warning"
    )
    assert "1 of 2 answer" in one_of_two.stdout


def test_signers_are_asked_for_how_many_settlements_their_money_lasts(tmp_path: Path, node: EvmNode) -> None:
    config = configured(tmp_path, node.url)
    (poor,) = told(checked(config), "warning")
    assert "has money for 0 settlements at the fees of the moment: fund it" in poor
    rich = derive_wallets().relayer.private_key_hex
    done = checked(config, signer_key=rich, signer_key_file="")
    address = checksum_address(address_of_key(bytes.fromhex(rich.removeprefix("0x"))))
    assert told(done, "warning") == []
    (line,) = [line for line in done.stdout.splitlines() if f"{address} has money for " in line]
    assert int(line.split(" for ")[1].split()[0].replace(",", "")) > 100
    assert address not in checked(config, "--for", "gateway", hub_url=NOWHERE).stdout


def test_fee_payers_on_solana_are_asked_too(tmp_path: Path, solana: SolanaNode) -> None:
    config = configured(tmp_path, solana.url, network="solana-devnet")
    done = checked(config)
    payers = next(line for line in done.stdout.splitlines() if line.startswith("solana fee payers")).split("  ")[-1]
    assert len(told(done, "warning")) == 2
    for payer in payers.strip().split(", "):
        solana.chain.airdrop(payer, 10_000_000)
    funded = checked(config)
    assert told(funded, "warning") == []
    assert funded.stdout.count("has money for 182 settlements") == 2


def test_what_a_node_does_not_do_is_said_in_its_own_words_without_its_key(tmp_path: Path, node: EvmNode) -> None:
    def answer(request: Request) -> Reply:
        asked = json.loads(request.body)
        if isinstance(asked, list) and len(asked) > 3:
            return Reply(429, {"error": {"message": "batches of 3 at most for 5ec2e75ec2e7"}})
        return Reply(200, ask(node.url, body=asked).json())

    with serving(answer) as limited:
        config = configured(tmp_path, f"{limited.url}/v2/5ec2e75ec2e7")
        done = checked(config)
    (said,) = [line for line in told(done, "warning") if "rpc_url" in line]
    assert said.startswith("networks.base-sepolia.rpc_url: node 1 takes 3 calls in a batch (")
    assert said.endswith(": batches of 3 at most for ...)")
    assert "1 of 1 answer" in done.stdout
    assert "5ec2e7" not in done.stdout


@pytest.mark.parametrize(("role", "is_told"), [("serve", True), ("hub", False)])
def test_temporary_files_in_memory_and_few_descriptors_are_warned_of(
    tmp_path: Path, role: str, *, is_told: bool
) -> None:
    config = configured(tmp_path, NOWHERE)
    words = command("config", "check", "--offline", "--for", role, "--config", config)
    shell = ["sh", "-c", 'ulimit -n 1024; exec "$0" "$@"', *words]
    environ = {**clean_environment(), "TMPDIR": IN_MEMORY}
    done = subprocess.run(shell, env=environ, capture_output=True, text=True, check=True)
    assert (f"warning: TMPDIR: {IN_MEMORY} is in memory" in done.stdout) is is_told
    assert "warning: ulimit -Hn: it is 1024" in done.stdout
    there = subprocess.run(words, env={**environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert IN_MEMORY not in there.stdout
