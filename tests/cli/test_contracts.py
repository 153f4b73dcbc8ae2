"""`contracts deploy`: the batcher comes to a chain once, and never by a key of the hub's (security A-24)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.chains.anvil import run_anvil
from tests.chains.rpc_client import RpcClient
from tests.cli.processes import finished, running
from tests.node_thread import run_in_thread
from tollkeeper.chains.evm.batcher import batcher_address, batcher_code_hash
from tollkeeper.core.evm.encoding import address_of_key, checksum_address, keccak256
from tollkeeper.sandbox.evm.node import EvmNode

USUAL = checksum_address(batcher_address())
OTHER_KEY = keccak256(b"who deploys, for tests only")


@pytest.fixture
def anvil() -> Iterator[RpcClient]:
    with run_anvil() as url, contextlib.closing(RpcClient(url)) as rpc:
        yield rpc


@pytest.fixture
def embedded() -> Iterator[RpcClient]:
    with run_in_thread(EvmNode()) as node, contextlib.closing(RpcClient(node.url)) as rpc:
        yield rpc


def configured(directory: Path, rpc: RpcClient, *, fund: bool = True) -> Path:
    """A configuration for that node, where the hub's key has ether, and one of its own, too."""
    made = finished("init", "--dir", directory, "--rpc-url", rpc.url)
    assert made.returncode == 0, made.stderr
    key_file(directory)
    if fund:
        for key in (hubs_key(directory), OTHER_KEY):
            rpc.call("anvil_setBalance", address_of_key(key), hex(10**18))
    return directory / "tollkeeper.toml"


def hubs_key(directory: Path) -> bytes:
    return bytes.fromhex((directory / "keys" / "signer.key").read_text().split()[-1][-64:])


def deploy(config: Path, *options: str | Path) -> CompletedProcess[str]:
    """By a key of its own, unless the options are others."""
    named = options or ("--key-file", config.parent / "other.key")
    return finished("contracts", "deploy", "--network", "base-sepolia", "--config", config, *named)


def key_file(directory: Path) -> Path:
    path = directory / "other.key"
    path.touch(0o600)
    path.write_text(OTHER_KEY.hex())
    return path


def code_hash(rpc: RpcClient, address: str) -> str:
    return "0x" + keccak256(bytes.fromhex(rpc.call("eth_getCode", address, "latest")[2:])).hex()


def test_it_is_deployed_where_every_hub_looks_and_only_once(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil)
    first = deploy(config)
    assert first.returncode == 0, first.stderr
    assert f"the batcher is at {USUAL} on base-sepolia\n" in first.stdout
    assert code_hash(anvil, batcher_address()) == batcher_code_hash()
    blocks = anvil.call("eth_blockNumber")
    again = deploy(config)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, f"the batcher is at {USUAL} on base-sepolia already")
    assert anvil.call("eth_blockNumber") == blocks


def test_without_the_deployer_it_is_created_and_named_for_the_configuration(
    tmp_path: Path, embedded: RpcClient
) -> None:
    config = configured(tmp_path, embedded)
    made = deploy(config)
    assert made.returncode == 0, made.stderr
    line = made.stdout.splitlines()[-1]
    assert line.startswith('write it into [networks.base-sepolia]: batcher = "0x')
    address = json.loads(line.rpartition(" = ")[2])
    assert address != USUAL
    assert code_hash(embedded, address) == batcher_code_hash()
    config.write_text(config.read_text().replace("rpc_url =", f'batcher = "{address}"\nrpc_url ='))
    checked = finished("config", "check", "--config", config)
    assert checked.returncode == 0, checked.stdout
    assert address in checked.stdout


def test_it_is_deployed_beside_a_running_hub(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil)
    with running("serve", "--config", config, "--port", "0") as process:
        process.wait_for_event("serving")
        made = deploy(config)
        assert made.returncode == 0, made.stderr
    assert code_hash(anvil, batcher_address()) == batcher_code_hash()


def test_a_key_of_its_own_must_be_named_and_the_hubs_is_none(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil)
    blocks = anvil.call("eth_blockNumber")
    unnamed = deploy(config, "--plain")
    assert (unnamed.returncode, "--key-file" in unnamed.stderr, "openssl rand -hex 32" in unnamed.stderr) == (
        2,
        True,
        True,
    )
    refused = deploy(config, "--key-file", tmp_path / "keys" / "signer.key")
    assert (refused.returncode, address_of_key(hubs_key(tmp_path)) in refused.stderr) == (2, True)
    assert anvil.call("eth_blockNumber") == blocks


def test_an_account_without_ether_deploys_nothing_and_is_named(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil, fund=False)
    refused = deploy(config)
    assert refused.returncode == 1
    assert checksum_address(address_of_key(OTHER_KEY)) in refused.stderr
    needed = re.search(r"has 0 wei and needs (\d+) for the gas: fund it", refused.stderr)
    assert needed is not None
    anvil.call("anvil_setBalance", address_of_key(OTHER_KEY), hex(int(needed[1])))
    funded = deploy(config)
    assert funded.returncode == 0, funded.stderr


@pytest.mark.parametrize("network", ["base", "solana", "nowhere"])
def test_a_network_that_is_not_enabled_is_a_wrong_option(tmp_path: Path, anvil: RpcClient, network: str) -> None:
    config = configured(tmp_path, anvil, fund=False)
    done = finished(
        "contracts", "deploy", "--network", network, "--config", config, "--key-file", tmp_path / "other.key"
    )
    assert done.returncode == 2


def test_a_node_of_another_chain_gets_no_contract(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil)
    environ = {"TOLLKEEPER_RPC_URL_BASE": anvil.url}
    named = ("--key-file", tmp_path / "other.key")
    refused = finished(
        "contracts", "deploy", "--network", "base", "--config", config, *named, environ=environ, is_forked=False
    )
    assert refused.returncode == 1
    assert "chain id" in refused.stderr
