"""Settings: where they come from, what wins, what is refused, and that everything wrong is said at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tollkeeper.core.configuration import AnonymousPaygates, LogLevel
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.challenge import Profile
from tollkeeper.core.settlement.states import Depths
from tollkeeper.core.trust import Exposure, TrustCaps
from tollkeeper.serving.nodes import config_of, solana_config
from tollkeeper.settings.loading import inspect_settings, load_settings
from tollkeeper.settings.model import NetworkSettings, Role, Settings, SettingsError
from tollkeeper.settings.sources import Sources

GUIDE = Path(__file__).parents[2] / "docs" / "guide-operator.md"
KEY = "5ec2e7" + "ab" * 29
RPC = "https://node.example.org/v2/5ec2e7"
SECRETS = {
    "TOLLKEEPER_ENCRYPTION_KEYS": f"e1:{KEY}",
    "TOLLKEEPER_AUTH_KEYS": f"a1:{KEY}",
    "TOLLKEEPER_SIGNER_KEY": KEY,
}
ENOUGH = {
    **SECRETS,
    "TOLLKEEPER_DEFAULT_NETWORK": "base-sepolia",
    "TOLLKEEPER_RPC_URL_BASE_SEPOLIA": RPC,
    "TOLLKEEPER_HUB_URL": "https://hub.example.org",
}


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "tollkeeper.toml"
        path.write_text(text)
        return path

    return write


def load(extra: dict[str, str] | None = None, *, role: Role = Role.SERVE, file: Path | None = None) -> Settings:
    return load_settings(role, file, environ={**ENOUGH, **(extra or {})})


def problems(environ: dict[str, str], *, role: Role = Role.SERVE, file: Path | None = None) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(role, file, environ=environ)
    return {finding.name: finding.problem for finding in caught.value.findings}


@pytest.mark.parametrize("section", ["[networks.base-seplia]", "[networks.mars]\nrpc_url = 'https://node.example.org'"])
@pytest.mark.parametrize("role", [Role.SERVE, Role.GATEWAY])
def test_a_section_of_no_network_is_not_passed_over(config: Callable[[str], Path], section: str, *, role: Role) -> None:
    """A gateway needs nothing in a section, so a misspelled one would enable nothing and say so to nobody."""
    file = config(f"[networks.base-sepolia]\n{section}\n")
    name = section.partition("]")[0][1:]
    assert problems(ENOUGH, role=role, file=file)[name] == "there is no such network"


@pytest.mark.parametrize(("role", "remedy"), [(Role.SERVE, "set rpc_url"), (Role.GATEWAY, "write a section")])
def test_a_gateway_is_told_to_enable_a_network_by_its_section_alone(*, role: Role, remedy: str) -> None:
    without = {name: text for name, text in ENOUGH.items() if "RPC_URL" not in name}
    with pytest.raises(SettingsError) as caught:
        load_settings(role, None, environ=without)
    told = {finding.name.partition(" ")[0]: finding.remedy for finding in caught.value.findings}
    assert told["networks"].startswith(remedy)
    assert told["TOLLKEEPER_DEFAULT_NETWORK"].startswith(remedy)


def test_an_operator_has_at_most_45_settings_to_know_networks_own_apart_and_the_guide_names_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: set[str] = set()
    monkeypatch.setattr(Sources, "report_unknown", lambda sources: asked.update(sources._asked))  # noqa: SLF001
    for role in Role:
        inspect_settings(role, environ={})
    networks = tuple("_" + name.replace("-", "_") for name in NETWORKS)
    settings = {name.removesuffix("_file") for name in asked if not name.endswith(networks)}
    assert len(settings) <= 45
    rows = [row.split("|")[1] for row in GUIDE.read_text().splitlines() if row.startswith("| `")]
    named = {name.removesuffix("_file") for row in rows for name in re.findall("`([a-z_]+)`", row)}
    assert settings <= named


def test_a_connection_is_kept_two_seconds_to_an_hour() -> None:
    assert load().patience == Patience(15, 60, 1024, 60, 75)
    setting = "TOLLKEEPER_IDLE_TIMEOUT_SECONDS"
    for seconds in (2, 3600):
        assert load({setting: str(seconds)}).patience.idle_seconds == seconds
    for wrong in ("1", "3601", "2.5", "soon"):
        assert setting in problems({**ENOUGH, setting: wrong})


def test_a_body_has_a_size() -> None:
    assert load({"TOLLKEEPER_CALL_BODY_MAX_MB": "2"}).call_body_size_bytes == 2 * 1024 * 1024
    assert load().call_body_size_bytes == 100 * 1024 * 1024
    assert "TOLLKEEPER_CALL_BODY_MAX_MB" in problems({**ENOUGH, "TOLLKEEPER_CALL_BODY_MAX_MB": "0"})


def test_defaults_are_those_of_a_machine_of_ones_own() -> None:
    settings = load()
    assert (settings.host, settings.port) == ("127.0.0.1", 8402)
    assert settings.public_url.text == "http://127.0.0.1:8402"
    assert settings.anonymous_paygates is AnonymousPaygates.CREATE
    assert not settings.allow_private_targets
    assert settings.challenge_profile is Profile.SUPERSET
    assert settings.database_url == "sqlite:///data/tollkeeper.db"
    assert settings.hub_url is None
    assert list(settings.networks) == ["base-sepolia"]
    assert settings.networks["base-sepolia"].rpc_urls == (RPC,)


def test_parts_that_run_apart_have_databases_of_their_own() -> None:
    urls = {load(role=role).database_url for role in Role}
    assert len(urls) == len(Role)
    assert load(role=Role.HUB).port != load(role=Role.GATEWAY).port


def test_an_option_wins_over_the_environment_and_the_environment_over_the_file(
    config: Callable[[str], Path],
) -> None:
    file = config('port = 1111\nhost = "::1"\nlog_level = "debug"\n')
    environ = {**ENOUGH, "TOLLKEEPER_PORT": "2222", "TOLLKEEPER_HOST": "127.0.0.2"}
    settings = load_settings(Role.SERVE, file, overrides={"port": "3333"}, environ=environ)
    assert (settings.port, settings.host, settings.log_level) == (3333, "127.0.0.2", LogLevel.DEBUG)


def test_the_file_is_the_option_else_the_variable_else_the_one_in_this_directory(
    config: Callable[[str], Path], tmp_path: Path
) -> None:
    config("port = 1111")
    other = tmp_path / "other.toml"
    other.write_text("port = 2222")
    third = tmp_path / "third.toml"
    third.write_text("port = 3333")
    assert load().port == 1111
    assert load({"TOLLKEEPER_CONFIG": str(other)}).port == 2222
    assert load({"TOLLKEEPER_CONFIG": str(other)}, file=third).port == 3333


def test_a_network_section_and_its_variables_are_one(config: Callable[[str], Path]) -> None:
    file = config(
        """
        [networks.base-mainnet]
        rpc_url = ["https://one.example.org", "https://two.example.org"]
        asset_name = "Another Coin"
        [networks.base-sepolia]
        asset = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
        wallet_factories = ["0x0BA5ED0c6AA8c49038F819E587E2633c4A9F428a"]
        """
    )
    networks = load({"TOLLKEEPER_ASSET_VERSION_BASE": "3"}, file=file).networks
    assert networks["base-sepolia"].wallet_factories == ("0x0ba5ed0c6aa8c49038f819e587e2633c4a9f428a",)
    assert networks["base"].wallet_factories == ()
    assert networks["base"].rpc_urls == ("https://one.example.org", "https://two.example.org")
    assert (networks["base"].asset_name, networks["base"].asset_version) == ("Another Coin", "3")
    assert networks["base-sepolia"].network.usdc.address == "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913"
    assert networks["base-sepolia"].rpc_urls == (RPC,)


def test_paths_are_relative_to_the_file_that_names_them(config: Callable[[str], Path], tmp_path: Path) -> None:
    key = tmp_path / "keys" / "signer.key"
    key.parent.mkdir()
    key.write_text(KEY)
    key.chmod(0o600)
    file = config('signer_key_file = "keys/signer.key"\ndata_dir = "state"')
    environ = {name: value for name, value in ENOUGH.items() if name != "TOLLKEEPER_SIGNER_KEY"}
    settings = load_settings(Role.SERVE, file, environ=environ)
    assert [one.reveal() for one in settings.signer_keys] == [bytes.fromhex(KEY)]
    assert settings.database_url == f"sqlite:///{tmp_path}/state/tollkeeper.db"
    urls = {"sqlite:///other.db": f"sqlite:///{tmp_path}/other.db", "sqlite:////var/x.db": "sqlite:////var/x.db"}
    for url, meant in urls.items():
        assert load({"TOLLKEEPER_DATABASE_URL": url}, file=file).database_url == meant


def test_a_node_that_is_named_twice_vouches_for_nobody() -> None:
    again = {**ENOUGH, "TOLLKEEPER_RPC_URL_BASE_SEPOLIA": f"{RPC}, https://other.example.org, {RPC}/"}
    assert "named twice" in problems(again)["TOLLKEEPER_RPC_URL_BASE_SEPOLIA"]


def test_a_number_with_a_point_is_to_be_quoted(config: Callable[[str], Path]) -> None:
    with pytest.raises(SettingsError, match=r"assume_valid_max_value: it is .*: put a number with a point in quotes"):
        load(file=config("assume_valid_max_value = 0.002"))


def test_a_hub_settles_with_as_many_keys_as_its_files_hold(config: Callable[[str], Path], tmp_path: Path) -> None:
    keys = [f"{number:064x}" for number in (1, 2, 3)]
    for name, held in (("a.key", keys[:2]), ("b.key", keys[2:])):
        (tmp_path / name).write_text("\n".join(held))
        (tmp_path / name).chmod(0o600)
    file = config('signer_key_file = ["a.key", "b.key"]')
    environ = {name: value for name, value in ENOUGH.items() if name != "TOLLKEEPER_SIGNER_KEY"}
    settings = load_settings(Role.SERVE, file, environ=environ)
    assert [one.reveal().hex() for one in settings.signer_keys] == keys
    (tmp_path / "b.key").write_text(keys[0])
    with pytest.raises(SettingsError, match="a key is there twice"):
        load_settings(Role.SERVE, file, environ=environ)


def test_larger_amounts_wait_for_more_blocks_on_networks_of_real_money_unless_it_is_set_otherwise() -> None:
    steps = ((100_000_000, 3), (1_000_500_000, 12))
    given = load({"TOLLKEEPER_CONFIRM_DEPTH": "2", "TOLLKEEPER_CONFIRM_DEPTH_STEPS": "100:3, 1000.5:12"}).depths
    assert {name: given.of(network) for name, network in NETWORKS.items()} == dict.fromkeys(NETWORKS, Depths(2, steps))
    usual = load().depths
    assert {name: usual.of(network) for name, network in NETWORKS.items()} == {
        "base": Depths(1, ((100_000_000, 3), (1_000_000_000, 10))),
        "base-sepolia": Depths(1),
        "solana-mainnet": Depths(1, ((100_000_000, 2),)),
        "solana-devnet": Depths(1),
    }
    none = load({"TOLLKEEPER_CONFIRM_DEPTH_STEPS": ""}).depths
    assert none.of(NETWORKS["base"]) == Depths(1)


def test_the_least_price_is_what_no_payment_may_be_below() -> None:
    networks = {name: NetworkSettings(network, ("http://127.0.0.1:1",)) for name, network in NETWORKS.items()}
    for given, wanted in (({}, 0), ({"TOLLKEEPER_MIN_PRICE": "0.001"}, 1_000)):
        settings = load(given)
        assert settings.min_price_micro == wanted
        assert {config_of(one, settings).min_value for one in networks.values()} == {wanted}


def test_a_gate_s_caps_on_trust_are_ten_times_a_payer_s() -> None:
    assert load().exposure == TrustCaps(Exposure(20, 20_000_000), Exposure(200, 200_000_000))
    payer = {"TOLLKEEPER_ASSUME_VALID_MAX_PAYMENTS": "3", "TOLLKEEPER_ASSUME_VALID_MAX_VALUE": "0.5"}
    assert load(payer).exposure == TrustCaps(Exposure(3, 500_000), Exposure(30, 5_000_000))


def test_what_larger_amounts_wait_for_is_turned_off_by_an_empty_list(config: Callable[[str], Path]) -> None:
    settings = load(file=config("confirm_depth_steps = []"))
    assert settings.depths.of(NETWORKS["base"]) == Depths(1)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CONFIRM_DEPTH_STEPS", "100"),
        ("CONFIRM_DEPTH_STEPS", "100:0"),
        ("HOST", "a b"),
        ("PORT", "65536"),
        ("PORT", "84o2"),
        ("PUBLIC_URL", "pay.example.org"),
        ("PUBLIC_URL", "https://pay.example.org/x"),
        ("HUB_URL", "hub"),
        ("DATABASE_URL", "mysql://db/x"),
        ("DEFAULT_NETWORK", "base"),
        ("DEFAULT_NETWORK", "ethereum"),
        ("DEFAULT_PAYMENT_ADDRESS", "0x12"),
        ("DEFAULT_PAYMENT_ADDRESS", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02914"),
        ("ANONYMOUS_PAYGATES", "sometimes"),
        ("ALLOW_PRIVATE_TARGETS", "1"),
        ("CHALLENGE_PROFILE", "x402-c"),
        ("ASSUME_VALID_MAX_PAYMENTS", "0"),
        ("ASSUME_VALID_MAX_VALUE", "0.0000001"),
        ("ASSUME_VALID_MAX_VALUE", "-1"),
        ("TRUSTED_PROXIES", "10.0.0.1/8"),
        ("UNPAID_REQUESTS_PER_MINUTE", "-1"),
        ("METRICS_ADDRESS", "8403"),
        ("TRUSTED_ISSUERS", "hub"),
        ("CORS_ORIGINS", "https://x/y"),
        ("CONFIRM_DEPTH", "0"),
        ("MAX_FEE_PER_GAS_WEI", "0"),
        ("GAS_LIMIT", "49999"),
        ("WALLET_FACTORIES_BASE_SEPOLIA", "0x12"),
        ("WALLET_FACTORIES_BASE_SEPOLIA", "0x036cbd53842c5426634e7929541ec2318f3dcf7e"),
        ("WALLET_FACTORIES_BASE_SEPOLIA", "0xca11bde05977b3631167028862be2a173976ca11"),
        ("WALLET_FACTORIES_SOLANA_DEVNET", "0x036cbd53842c5426634e7929541ec2318f3dcf7e"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "xml"),
        ("SHUTDOWN_TIMEOUT_SECONDS", "0"),
        ("RPC_URL_BASE_SEPOLIA", "node"),
        ("ASSET_BASE_SEPOLIA", "0x12"),
        ("ASSET_NAME_BASE_SEPOLIA", "\u20ac"),
        ("ASSET_VERSION_BASE_SEPOLIA", "x" * 65),
        ("ENCRYPTION_KEYS", "e1"),
        ("AUTH_KEYS", KEY),
        ("SIGNER_KEY", "e1:" + KEY),
        ("PROT", "8402"),
        ("RPC_URL_SOLANA_DEVNET", "node"),
        ("ASSET_SOLANA_DEVNET", "0x036cbd53842c5426634e7929541ec2318f3dcf7e"),
        ("ASSET_NAME_SOLANA_DEVNET", "USDC"),
    ],
)
def test_a_wrong_value_or_name_is_reported_by_the_name_that_its_reader_wrote(variable: str, value: str) -> None:
    found = problems({**ENOUGH, f"TOLLKEEPER_{variable}": value})
    assert f"TOLLKEEPER_{variable}" in found


def test_everything_that_is_wrong_is_said_at_once(config: Callable[[str], Path]) -> None:
    file = config('port = "x"\nprot = 1\ndebug = 1.5\n[networks.mars]\nrpc_url = "https://x"')
    found = problems({"TOLLKEEPER_LOG_LEVEL": "loud", "TOLLKEEPER_HOST": "0.0.0.0"}, file=file)  # noqa: S104
    assert set(found) == {
        "port",
        "prot",
        "debug",
        "networks",
        "networks.mars",
        "networks.mars.rpc_url",
        "TOLLKEEPER_LOG_LEVEL",
        "public_url (TOLLKEEPER_PUBLIC_URL)",
        "default_network (TOLLKEEPER_DEFAULT_NETWORK)",
        "encryption_keys_file (TOLLKEEPER_ENCRYPTION_KEYS_FILE)",
        "auth_keys_file (TOLLKEEPER_AUTH_KEYS_FILE)",
        "signer_key_file (TOLLKEEPER_SIGNER_KEY_FILE)",
    }


@pytest.mark.parametrize(
    ("role", "needed"),
    [
        (Role.SERVE, {"encryption_keys", "auth_keys", "signer_key"}),
        (Role.GATEWAY, {"encryption_keys", "auth_keys"}),
        (Role.HUB, {"auth_keys", "signer_key"}),
    ],
)
def test_each_part_needs_the_keys_that_it_uses_and_no_others(role: Role, needed: set[str]) -> None:
    environ = {name: value for name, value in ENOUGH.items() if name not in SECRETS}
    found = problems(environ, role=role)
    assert set(found) == {f"{name}_file (TOLLKEEPER_{name.upper()}_FILE)" for name in needed}


def test_a_gateway_alone_needs_a_hub_and_no_node(config: Callable[[str], Path]) -> None:
    file = config("[networks.base]\n[networks.base-sepolia]")
    environ = {**SECRETS, "TOLLKEEPER_DEFAULT_NETWORK": "base"}
    assert set(problems(environ, role=Role.GATEWAY, file=file)) == {"hub_url (TOLLKEEPER_HUB_URL)"}
    environ["TOLLKEEPER_HUB_URL"] = "https://hub.example.org/x402/"
    settings = load_settings(Role.GATEWAY, file, environ=environ)
    assert settings.hub_url == "https://hub.example.org/x402"
    for own in ("http://127.0.0.1:8402", "https://pay.example.org/"):
        itself = {**environ, "TOLLKEEPER_HUB_URL": own, "TOLLKEEPER_PUBLIC_URL": "https://pay.example.org"}
        assert "this gateway" in problems(itself, role=Role.GATEWAY, file=file)["TOLLKEEPER_HUB_URL"]
    assert list(settings.networks) == ["base", "base-sepolia"]


def test_a_section_without_a_node_is_reported_where_a_hub_runs(config: Callable[[str], Path]) -> None:
    assert set(problems(ENOUGH, file=config("[networks.base]"))) == {"rpc_url_base (TOLLKEEPER_RPC_URL_BASE)"}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, AnonymousPaygates.CREATE),
        ({"TOLLKEEPER_TRUSTED_PROXIES": "127.0.0.1"}, AnonymousPaygates.OFF),
        ({"TOLLKEEPER_PUBLIC_URL": "https://pay.example.org"}, AnonymousPaygates.OFF),
        (
            {"TOLLKEEPER_PUBLIC_URL": "https://pay.example.org", "TOLLKEEPER_ANONYMOUS_PAYGATES": "create"},
            AnonymousPaygates.CREATE,
        ),
        ({"TOLLKEEPER_ANONYMOUS_PAYGATES": "manage"}, AnonymousPaygates.MANAGE),
    ],
)
def test_who_may_make_ownerless_gates_follows_from_who_can_ask(
    extra: dict[str, str], expected: AnonymousPaygates
) -> None:
    assert load(extra).anonymous_paygates is expected


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_key_file_that_others_can_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signer.key"
    path.write_text(KEY)
    path.chmod(mode)
    environ = {name: value for name, value in ENOUGH.items() if name != "TOLLKEEPER_SIGNER_KEY"}
    environ["TOLLKEEPER_SIGNER_KEY_FILE"] = str(path)
    (problem,) = problems(environ).values()
    assert "chmod 600" in problem
    path.chmod(0o600)
    load_settings(Role.SERVE, environ=environ)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"not a key"])
def test_a_missing_or_unreadable_key_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "encryption.keys"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    environ = {name: value for name, value in ENOUGH.items() if name != "TOLLKEEPER_ENCRYPTION_KEYS"}
    assert list(problems({**environ, "TOLLKEEPER_ENCRYPTION_KEYS_FILE": str(path)})) == [
        "TOLLKEEPER_ENCRYPTION_KEYS_FILE"
    ]
    assert list(problems({**environ, "TOLLKEEPER_ENCRYPTION_KEYS_FILE": str(tmp_path)})) == [
        "TOLLKEEPER_ENCRYPTION_KEYS_FILE"
    ]


def test_a_secret_in_the_configuration_file_is_refused_and_not_quoted(config: Callable[[str], Path]) -> None:
    environ = {name: value for name, value in ENOUGH.items() if name != "TOLLKEEPER_SIGNER_KEY"}
    with pytest.raises(SettingsError, match="does not belong") as caught:
        load_settings(Role.SERVE, config(f'signer_key = "{KEY}"'), environ=environ)
    assert "5ec2e7" not in str(caught.value)


def test_no_error_and_no_repr_shows_a_secret() -> None:
    settings = load()
    assert "5ec2e7" not in repr(settings)
    assert "ababab" not in repr(settings)
    for variable in ("SIGNER_KEY", "AUTH_KEYS", "ENCRYPTION_KEYS", "PORT", "HOST", "RPC_URL_BASE_SEPOLIA", "LOG_LEVEL"):
        with pytest.raises(SettingsError) as caught:
            load({f"TOLLKEEPER_{variable}": f"{KEY} {KEY}"})
        assert "5ec2e7" not in str(caught.value)


@pytest.mark.parametrize("text", ["port = ", "\x00", 'networks = "base"', "[networks]\nbase = 1"])
def test_a_file_that_is_no_configuration_is_refused(config: Callable[[str], Path], text: str) -> None:
    assert problems(ENOUGH, file=config(text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert list(problems(ENOUGH, file=tmp_path / "none.toml")) == [str(tmp_path / "none.toml")]


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load({"TOLLKEEPER_PORT": "", "TOLLKEEPER_DEFAULT_PAYMENT_ADDRESS": " "}).port == 8402


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("127.0.0.1", 8403)),
        ({"TOLLKEEPER_METRICS_ADDRESS": ""}, None),
        ({"TOLLKEEPER_METRICS_ADDRESS": "[::1]:9000"}, ("::1", 9000)),
    ],
)
def test_metrics_have_an_address_of_their_own_and_an_empty_one_is_none(
    given: dict[str, str], expected: tuple[str, int] | None
) -> None:
    assert load_settings(Role.SERVE, environ={**ENOUGH, **given}).metrics_address == expected


def test_the_fees_that_a_buyer_can_cause_on_solana_are_capped_far_below_what_facilitators_may_allow() -> None:
    given = {
        "TOLLKEEPER_RPC_URL_SOLANA_DEVNET": RPC,
        "TOLLKEEPER_FEE_BUDGET_PER_HOUR_LAMPORTS": "777000",
    }
    settings = load(given)
    config = solana_config(settings.networks["solana-devnet"], settings)
    assert (config.compute_limit_max, config.compute_price_max_micro_lamports) == (400_000, 100_000)
    assert (config.fee_budget_per_hour_lamports, config.is_token_2022) == (777_000, False)


def test_token_2022_is_a_setting_of_a_solana_network(config: Callable[[str], Path]) -> None:
    file = config(f'[networks.solana-devnet]\nrpc_url = "{RPC}"\ntoken_2022 = true\n')
    settings = load(file=file)
    assert solana_config(settings.networks["solana-devnet"], settings).is_token_2022
    other = config(f'[networks.base-sepolia]\nrpc_url = "{RPC}"\ntoken_2022 = true\n')
    assert problems(ENOUGH, file=other)
