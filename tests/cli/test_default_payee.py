"""`config check` says of `default_payment_address` what saving a gate would (contract 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from solders.keypair import Keypair

from tests.cli.processes import configured, finished
from tests.core.solana_payments import account_of
from tests.node_thread import run_in_thread
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.solana.node import SolanaNode

NAME = "default_payment_address"
ON_SOLANA = "solana-devnet"
NOWHERE = "http://127.0.0.1:9"
WALLET = str(Keypair().pubkey())


@pytest.fixture(scope="module")
def node() -> Iterator[SolanaNode]:
    with run_in_thread(SolanaNode()) as running:
        yield running


def checked(tmp_path: Path, network: str, rpc_url: str, address: str, role: str = "serve") -> CompletedProcess[str]:
    configured(tmp_path, rpc_url, network=network)
    environ = {"TOLLKEEPER_DEFAULT_PAYMENT_ADDRESS": address}
    return finished("config", "check", "--for", role, "--config", tmp_path / "tollkeeper.toml", environ=environ)


def told(check: CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in check.stdout + check.stderr
    assert check.stderr == ""
    return [line for line in check.stdout.splitlines() if line.startswith((f"error: {NAME}", f"warning: {NAME}"))]


def test_a_wallet_that_can_be_paid_is_nothing_to_tell(tmp_path: Path, node: SolanaNode) -> None:
    node.chain.open_account(WALLET)
    check = checked(tmp_path, ON_SOLANA, node.url, WALLET)
    assert (told(check), check.returncode) == ([], 0)


def test_a_wallet_without_a_token_account_is_a_warning(tmp_path: Path, node: SolanaNode) -> None:
    wallet = str(Keypair().pubkey())
    check = checked(tmp_path, ON_SOLANA, node.url, wallet)
    (line,) = told(check)
    assert line.startswith(f"warning: {NAME}: {wallet} has no USDC token account on {ON_SOLANA} yet")
    assert check.returncode == 0


def test_a_token_account_in_a_wallets_place_is_an_error_that_names_the_wallet(tmp_path: Path, node: SolanaNode) -> None:
    wallet = str(Keypair().pubkey())
    check = checked(tmp_path, ON_SOLANA, node.url, node.chain.open_account(wallet))
    (line,) = told(check)
    assert line.startswith(f"error: {NAME}:")
    assert f"name the wallet that it belongs to, {wallet}" in line
    assert check.returncode == 3


def test_without_a_node_what_the_address_shows_by_itself_is_told(tmp_path: Path) -> None:
    check = checked(tmp_path / "wallet", ON_SOLANA, NOWHERE, WALLET)
    (line,) = told(check)
    assert line.startswith(f"warning: {NAME}: no node of {ON_SOLANA} answers")
    lines = told(checked(tmp_path / "account", ON_SOLANA, NOWHERE, str(account_of(WALLET))))
    assert [line.startswith(f"warning: {NAME}") for line in lines] == [True, True]
    assert "is no wallet: it lies off the curve" in lines[0]


def test_a_node_of_another_chain_is_told_as_what_it_is(tmp_path: Path, node: SolanaNode) -> None:
    (line,) = told(checked(tmp_path, "solana-mainnet", node.url, WALLET))
    assert line.startswith(f"warning: {NAME}: no node of solana-mainnet can be used (the node's genesis hash is ")


@pytest.mark.parametrize(("role", "returncode"), [("gateway", 0), ("serve", 3)])
def test_where_no_node_of_the_network_is_set_nobody_can_say(tmp_path: Path, role: str, returncode: int) -> None:
    """A gateway whose facilitator knows the network needs none; a hub does, which is another finding."""
    configured(tmp_path, network=ON_SOLANA)
    environ = {"TOLLKEEPER_DEFAULT_PAYMENT_ADDRESS": WALLET, "TOLLKEEPER_HUB_URL": NOWHERE}
    check = finished("config", "check", "--for", role, "--config", tmp_path / "tollkeeper.toml", environ=environ)
    (line,) = told(check)
    assert line.startswith(f"warning: {NAME}: no node of {ON_SOLANA} is set")
    assert check.returncode == returncode


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ("base-sepolia", "0x" + 40 * "0"),
        ("base-sepolia", NETWORKS["base-sepolia"].usdc.address),
        (ON_SOLANA, NETWORKS[ON_SOLANA].usdc.address),
        (ON_SOLANA, "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"),
        (ON_SOLANA, "1nc1nerator11111111111111111111111111111111"),
    ],
)
def test_who_is_nobody_is_an_error(tmp_path: Path, network: str, address: str) -> None:
    check = checked(tmp_path, network, NOWHERE, address)
    (line,) = told(check)
    assert line.startswith(f"error: {NAME}: it is nobody's who could be paid")
    assert check.returncode == 3


@pytest.mark.parametrize("network", ["base-sepolia", ON_SOLANA])
def test_the_hubs_own_accounts_are_an_error(tmp_path: Path, network: str) -> None:
    shown = checked(tmp_path, network, NOWHERE, "0x" + "71" * 20).stdout
    name = "signer_key" if network == "base-sepolia" else "solana fee payers"
    line = next(line for line in shown.splitlines() if line.startswith(name))
    environ = {"TOLLKEEPER_DEFAULT_PAYMENT_ADDRESS": line.removeprefix(name).strip().split(", ")[-1]}
    check = finished("config", "check", "--config", tmp_path / "tollkeeper.toml", environ=environ)
    assert told(check)[0].startswith(f"error: {NAME}: it is nobody's")


def test_an_address_of_a_family_without_a_network_is_a_warning(tmp_path: Path) -> None:
    (line,) = told(checked(tmp_path, "base-sepolia", NOWHERE, WALLET))
    assert line.startswith(f"warning: {NAME}: no network of its kind is set")


def test_a_hub_pays_nobody_and_asks_nothing(tmp_path: Path) -> None:
    assert told(checked(tmp_path, ON_SOLANA, NOWHERE, WALLET, role="hub")) == []


def test_an_address_on_base_asks_no_node(tmp_path: Path) -> None:
    check = checked(tmp_path, "base-sepolia", NOWHERE, "0x" + "71" * 20)
    assert (told(check), check.returncode) == ([], 0)


@pytest.mark.parametrize("address", ["0x" + "00" * 20, NETWORKS["base-sepolia"].usdc.address])
def test_init_names_nobody_who_could_not_be_paid(tmp_path: Path, address: str) -> None:
    made = finished("init", "--dir", tmp_path / "new", "--rpc-url", NOWHERE, "--payment-address", address)
    assert made.returncode != 0
    assert "--payment-address" in made.stderr
    assert not (tmp_path / "new").exists()
