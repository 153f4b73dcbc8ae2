"""`init` and `config check`: what is written serves, nothing is written over, no secret is printed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from solders.keypair import Keypair

import tollkeeper
from tests.cli.processes import finished
from tollkeeper.chains.solana.config import RENT_EXEMPT_LAMPORTS, SolanaConfig
from tollkeeper.core.evm.encoding import address_of_key, checksum_address
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.keys.keyring import fee_payer_seeds, parse_private_key
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.ed25519 import public_key
from tollkeeper.serving.config.init import data_place
from tollkeeper.settings.loading import DEFAULT_PORT, load_settings
from tollkeeper.settings.model import GasCaps, Role

GUIDE = Path(__file__).parents[2] / "docs" / "guide-operator.md"
RPC = "https://node.example.org/v2/c0ffee5ec2e7"


def keys_of(directory: Path) -> list[str]:
    return [
        word.rpartition(":")[2].strip().removeprefix("0x")
        for word in (path.read_text() for path in (directory / "keys").iterdir())
    ]


def test_init_writes_a_configuration_that_every_part_can_start_with(tmp_path: Path) -> None:
    made = finished("init", "--dir", tmp_path / "new", "--rpc-url", RPC, "--network", "base")
    assert made.returncode == 0, made.stderr
    environ = {"TOLLKEEPER_HUB_URL": "https://hub.example.org"}
    for role in Role:
        settings = load_settings(role, tmp_path / "new" / "tollkeeper.toml", environ=environ)
        assert list(settings.networks) == ["base"]
        assert settings.networks["base"].rpc_urls == (RPC,)
    check = finished("config", "check", "--offline", "--config", tmp_path / "new" / "tollkeeper.toml")
    assert check.returncode == 0, check.stdout


def test_each_setting_that_init_leaves_commented_out_can_be_turned_on_as_it_stands(tmp_path: Path) -> None:
    """It changes nothing but where the comment shows an example."""
    config = tmp_path / "tollkeeper.toml"
    finished("init", "--dir", tmp_path, "--rpc-url", RPC, "--payment-address", "0x" + "12" * 20)

    def shown() -> dict[str, str]:
        check = finished("config", "check", "--offline", "--config", config)
        assert check.returncode == 0, check.stdout
        return dict(line.split(None, 1) for line in check.stdout.splitlines() if "  " in line)

    before, text = shown(), config.read_text()
    assert len(re.findall("^# [a-z_]+ = ", text, re.MULTILINE)) > 25
    config.write_text(re.sub("^# ([a-z_]+ = )", r"\1", text, flags=re.MULTILINE))
    after = shown()
    assert {name for name in before if before[name] != after[name]} == {
        *("anonymous_paygates", "app_url", "confirm_depth_steps", "cors_origins", "min_price"),
        "trusted_proxies",
    }


def test_init_keeps_its_files_to_their_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert finished("init", "--dir", tmp_path).returncode == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for path in (*(tmp_path / "keys").iterdir(), tmp_path / "tollkeeper.toml"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_next_steps_can_be_typed_as_they_are_printed(tmp_path: Path) -> None:
    """After `make demo` the command is in `.venv/bin`, which no shell looks through by itself."""
    called = tmp_path / "bin" / "tollkeeper"
    called.parent.mkdir()
    called.write_text(f"#!{sys.executable}\nfrom tollkeeper.cli import main\nmain()\n")
    called.chmod(0o755)
    source = Path(tollkeeper.__file__).parent.parent
    for path, said in (("/usr/bin", str(called)), (f"{called.parent}:/usr/bin", "tollkeeper")):
        directory = tmp_path / str(len(said))
        made = subprocess.run(
            [called, "init", "--dir", directory],
            env={"PATH": path, "PYTHONPATH": str(source)},
            check=True,
            capture_output=True,
            text=True,
        )
        assert f"  4. {said} serve --config {directory}/tollkeeper.toml" in made.stdout


def test_init_says_whom_to_fund_and_no_secret(tmp_path: Path) -> None:
    made = finished("init", "--dir", tmp_path)
    key = parse_private_key((tmp_path / "keys" / "signer.key").read_text())
    assert checksum_address(address_of_key(key.reveal())) in made.stdout
    for secret in keys_of(tmp_path):
        assert len(secret) == 64
        assert secret not in made.stdout + made.stderr


def test_init_for_solana_says_whom_to_fund_there_and_config_check_agrees(tmp_path: Path) -> None:
    wallet = str(Keypair().pubkey())
    options = ("--network", "solana-devnet", "--rpc-url", RPC, "--payment-address", wallet)
    made = finished("init", "--dir", tmp_path, *options)
    assert made.returncode == 0, made.stderr
    key = parse_private_key((tmp_path / "keys" / "signer.key").read_text())
    payers = [encode_key(public_key(seed)) for seed in fee_payer_seeds(key.reveal())]
    assert f"fund {' and '.join(payers)} with 0.01 SOL each on solana-devnet" in made.stdout
    check = finished("config", "check", "--offline", "--config", tmp_path / "tollkeeper.toml")
    assert check.returncode == 0, check.stdout
    assert all(payer in check.stdout for payer in (*payers, wallet))
    settings = load_settings(Role.SERVE, tmp_path / "tollkeeper.toml", environ={})
    assert (list(settings.networks), settings.default_payment_address) == (["solana-devnet"], wallet)
    other = finished("init", "--dir", tmp_path / "other", *options[:-1], "0x" + "71" * 20)
    assert other.returncode == 2
    assert not (tmp_path / "other").exists()


def test_the_sum_that_init_asks_for_lasts_for_as_many_settlements_as_it_says() -> None:
    caps = GasCaps()
    of_ether = 10**16 // (50_000_000 * caps.gas_limit)
    assert FAMILIES[Family.EVM].fee_money == "0.01 ether"
    assert f"lasts for {of_ether:,} of them at 0.05 gwei per gas" in FAMILIES[Family.EVM].fee_use
    fee = SolanaConfig(NETWORKS["solana-devnet"], ()).fee_max_lamports
    of_sol = (10**7 - RENT_EXEMPT_LAMPORTS) // fee
    assert FAMILIES[Family.SOLANA].fee_money == "0.01 SOL each"
    assert f"each lasts for {of_sol} of them at the highest fee" in FAMILIES[Family.SOLANA].fee_use


@pytest.mark.parametrize(
    ("role", "keys", "read", "not_read"),
    [
        (Role.HUB, {"auth.keys", "signer.key"}, "gas_limit", "default_network"),
        (Role.GATEWAY, {"auth.keys", "encryption.keys"}, "default_network", "gas_limit"),
        (Role.SERVE, {"auth.keys", "encryption.keys", "signer.key"}, "gas_limit", "trusted_issuers"),
    ],
)
def test_each_part_is_told_and_given_what_it_needs_and_no_more(
    tmp_path: Path, role: Role, keys: set[str], read: str, not_read: str
) -> None:
    hub = ("--hub-url", "https://hub.example.org") if role is Role.GATEWAY else ()
    made = finished("init", "--for", role.value, "--dir", tmp_path, "--rpc-url", RPC, *hub)
    assert {path.name for path in (tmp_path / "keys").iterdir()} == keys
    text = (tmp_path / "tollkeeper.toml").read_text()
    assert (read in text, not_read in text) == (True, False)
    assert ("fund 0x" in made.stdout) is (role is not Role.GATEWAY)
    assert f"{role.value} --config {tmp_path}" in made.stdout
    settings = load_settings(role, tmp_path / "tollkeeper.toml", environ={})
    assert settings.port == DEFAULT_PORT[role]
    named = ("config", "check", "--offline", "--for", role.value, "--config", tmp_path / "tollkeeper.toml")
    assert finished(*named).returncode == 0


def test_an_option_of_another_part_is_refused(tmp_path: Path) -> None:
    options = {"hub": ("--payment-address", "0x" + "12" * 20), "serve": ("--hub-url", "https://hub.example.org")}
    for role, option in options.items():
        refused = finished("init", "--for", role, "--dir", tmp_path / role, *option)
        assert (refused.returncode, option[0] in refused.stderr) == (2, True)
        assert not (tmp_path / role).exists()


def test_data_is_beside_the_configuration_but_never_in_etc(tmp_path: Path) -> None:
    made = finished("init", "--dir", tmp_path / "here")
    assert f"Data will be in {tmp_path}/here/data." in made.stdout
    (tmp_path / "link").symlink_to("/etc")
    for directory in (Path("/etc/tollkeeper"), Path("/etc"), tmp_path / "link" / "tollkeeper"):
        assert data_place(directory) == Path("/var/lib/tollkeeper")
    chosen = finished("init", "--dir", tmp_path / "there", "--data-dir", tmp_path / "elsewhere")
    assert f"Data will be in {tmp_path}/elsewhere." in chosen.stdout
    file = tmp_path / "there" / "tollkeeper.toml"
    settings = load_settings(Role.SERVE, file, environ={"TOLLKEEPER_RPC_URL_BASE_SEPOLIA": RPC})
    assert settings.database_url == f"sqlite:///{tmp_path}/elsewhere/tollkeeper.db"
    assert settings.files.place == tmp_path / "elsewhere" / "files"


def test_init_makes_other_keys_each_time(tmp_path: Path) -> None:
    finished("init", "--dir", tmp_path / "a")
    finished("init", "--dir", tmp_path / "b")
    keys = keys_of(tmp_path / "a") + keys_of(tmp_path / "b")
    assert len(set(keys)) == 6


@pytest.mark.parametrize("there", ["tollkeeper.toml", "keys/signer.key", "keys/auth.keys", "keys/encryption.keys"])
def test_init_writes_over_nothing(tmp_path: Path, there: str) -> None:
    path = tmp_path / there
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = sorted(str(each) for each in tmp_path.rglob("*"))
    made = finished("init", "--dir", tmp_path)
    assert made.returncode == 1
    assert str(path) in made.stderr
    assert path.read_text() == "mine"
    assert sorted(str(each) for each in tmp_path.rglob("*")) == before


def test_without_a_node_config_check_says_what_is_missing(tmp_path: Path) -> None:
    assert finished("init", "--dir", tmp_path).returncode == 0
    check = finished("config", "check", "--offline", "--config", tmp_path / "tollkeeper.toml")
    assert check.returncode == 3
    assert "TOLLKEEPER_RPC_URL_BASE_SEPOLIA" in check.stdout


def test_config_check_shows_each_setting_of_the_guide(tmp_path: Path) -> None:
    finished("init", "--dir", tmp_path, "--rpc-url", RPC)
    check = finished("config", "check", "--offline", "--config", tmp_path / "tollkeeper.toml")
    shown = {line.split()[0] for line in check.stdout.splitlines() if line.strip()}
    rows = [line.split("|")[1] for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    table = rows[rows.index(" `host`, `port` ") : rows.index(" `encryption_keys_file` ")]
    named = {name for row in table for name in re.findall("`([a-z_]+)`", row)}
    # data_dir is in the paths of database and files; hub_url is shown where it counts, of a gateway alone
    assert named - shown - {"hub"} == {"data_dir", "hub_url"}


def test_config_check_shows_what_is_effective_and_no_secret(tmp_path: Path) -> None:
    finished("init", "--dir", tmp_path, "--rpc-url", RPC)
    check = finished(
        "config", "check", "--config", tmp_path / "tollkeeper.toml", environ={"TOLLKEEPER_LOG_LEVEL": "error"}
    )
    shown = dict(line.split(None, 1) for line in check.stdout.splitlines() if line.strip() and "  " in line)
    assert shown["log_level"] == "error"
    assert shown["networks.base-sepolia.rpc_url"] == "https://node.example.org/..."
    for secret in (*keys_of(tmp_path), "c0ffee5ec2e7"):
        assert secret not in check.stdout + check.stderr


def test_config_check_warns_of_what_is_unwise_in_public(tmp_path: Path) -> None:
    finished("init", "--dir", tmp_path, "--rpc-url", RPC, "--public-url", "http://pay.example.org")
    environ = {"TOLLKEEPER_ALLOW_PRIVATE_TARGETS": "true", "TOLLKEEPER_ANONYMOUS_PAYGATES": "manage"}
    check = finished("config", "check", "--offline", "--config", tmp_path / "tollkeeper.toml", environ=environ)
    assert check.returncode == 0
    warnings = [line for line in check.stdout.splitlines() if line.startswith("warning: ")]
    warnings = [line for line in warnings if not line.startswith(("warning: TMPDIR", "warning: ulimit"))]
    assert [line.split(": ")[1] for line in warnings] == [
        *("public_url", "allow_private_targets", "anonymous_paygates", "trusted_proxies"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["init", "--network", "mars"],
        ["init", "--rpc-url", "node"],
        ["init", "--host", "0.0.0.0"],  # noqa: S104 - refused without a public URL
        ["init", "--payment-address", "0x12"],
        ["sandbox", "--engine", "abacus"],
        ["sandbox", "--relayer-key", "abc"],
        ["demo", "--client", "nobody"],
        ["demo", "--engine", "abacus"],
        ["serve", "--port", "70000"],
        ["no-such-command"],
    ],
)
def test_a_wrong_command_line_ends_with_2_and_writes_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert finished(*arguments).returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_colours_only_where_a_terminal_reads() -> None:
    done = finished("serve", "--config", "/nowhere/tollkeeper.toml")
    assert done.returncode == 3
    assert "\x1b" not in done.stdout + done.stderr


def test_version_is_the_packages() -> None:
    from tollkeeper import __version__  # noqa: PLC0415 - the one test that needs it

    assert finished("--version").stdout == f"tollkeeper {__version__}\n"
