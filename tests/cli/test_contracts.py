"""`contracts deploy`: the batcher comes to a chain once, and never behind a hub's back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chains.anvil import run_anvil
from tests.chains.rpc_client import RpcClient
from tests.cli.processes import finished, running
from tollkeeper.chains.batcher import batcher_address, batcher_code_hash
from tollkeeper.core.evm import address_of_key, checksum_address, keccak256
from tollkeeper.sandbox.evm_node import EvmNode

USUAL = checksum_address(batcher_address())
OTHER_KEY = keccak256(b"who deploys, for tests only")


@pytest.fixture
def anvil() -> Iterator[RpcClient]:
    with run_anvil() as url, contextlib.closing(RpcClient(url)) as rpc:
        yield rpc


@pytest.fixture
def embedded() -> Iterator[RpcClient]:
    with EvmNode().run_in_thread() as node, contextlib.closing(RpcClient(node.url)) as rpc:
        yield rpc


def configured(directory: Path, rpc: RpcClient, *, fund: bool = True) -> Path:
    """A configuration for that node, with a hub's key that has ether."""
    made = finished("init", "--dir", directory, "--rpc-url", rpc.url)
    assert made.returncode == 0, made.stderr
    if fund:
        fund_key(rpc, bytes.fromhex((directory / "keys" / "signer.key").read_text().split()[-1][-64:]))
    return directory / "tollkeeper.toml"


def fund_key(rpc: RpcClient, key: bytes) -> None:
    rpc.call("anvil_setBalance", address_of_key(key), hex(10**18))


def key_file(directory: Path) -> Path:
    path = directory / "other.key"
    path.touch(0o600)
    path.write_text(OTHER_KEY.hex())
    return path


def code_hash(rpc: RpcClient, address: str) -> str:
    return "0x" + keccak256(bytes.fromhex(rpc.call("eth_getCode", address, "latest")[2:])).hex()


def test_it_is_deployed_where_every_hub_looks_and_only_once(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil)
    first = finished("contracts", "deploy", "--network", "base-sepolia", "--config", config)
    assert first.returncode == 0, first.stderr
    assert f"the batcher is at {USUAL} on base-sepolia\n" in first.stdout
    assert code_hash(anvil, batcher_address()) == batcher_code_hash()
    blocks = anvil.call("eth_blockNumber")
    again = finished("contracts", "deploy", "--network", "base-sepolia", "--config", config)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, f"the batcher is at {USUAL} on base-sepolia already")
    assert anvil.call("eth_blockNumber") == blocks


def test_without_the_deployer_it_is_created_and_named_for_the_configuration(
    tmp_path: Path, embedded: RpcClient
) -> None:
    config = configured(tmp_path, embedded)
    made = finished("contracts", "deploy", "--network", "base-sepolia", "--config", config)
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


def test_the_hubs_own_key_is_not_used_while_a_hub_runs(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil)
    with running("serve", "--config", config, "--port", "0") as process:
        process.wait_for_event("serving")
        refused = finished("contracts", "deploy", "--network", "base-sepolia", "--config", config)
        assert refused.returncode == 3
        fund_key(anvil, OTHER_KEY)
        other = finished(
            "contracts", "deploy", "--network", "base-sepolia", "--config", config, "--key-file", key_file(tmp_path)
        )
        assert other.returncode == 0, other.stderr
    assert code_hash(anvil, batcher_address()) == batcher_code_hash()


def test_an_account_without_ether_deploys_nothing_and_is_named(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil, fund=False)
    refused = finished(
        "contracts", "deploy", "--network", "base-sepolia", "--config", config, "--key-file", key_file(tmp_path)
    )
    assert refused.returncode == 1
    assert address_of_key(OTHER_KEY) in refused.stderr


@pytest.mark.parametrize("network", ["base", "solana", "nowhere"])
def test_a_network_that_is_not_enabled_is_a_wrong_option(tmp_path: Path, anvil: RpcClient, network: str) -> None:
    config = configured(tmp_path, anvil, fund=False)
    assert finished("contracts", "deploy", "--network", network, "--config", config).returncode == 2


def test_a_node_of_another_chain_gets_no_contract(tmp_path: Path, anvil: RpcClient) -> None:
    config = configured(tmp_path, anvil)
    environ = {"TOLLKEEPER_RPC_URL_BASE": anvil.url}
    refused = finished("contracts", "deploy", "--network", "base", "--config", config, environ=environ)
    assert refused.returncode == 1
    assert "chain id" in refused.stderr
