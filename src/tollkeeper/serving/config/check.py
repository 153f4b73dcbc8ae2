"""`tollkeeper config check`: the effective configuration without its secrets, and what is wrong or unwise about it.

Looks at settings, key files, the database's schema and what sealed it, and where files are kept; asks nodes who they
are, what the hub's accounts hold, and of whom new gates pay. Says what it did not look at; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.settlement.states import Depths
from tollkeeper.core.usdc import format_usdc
from tollkeeper.core.wallets import shown_address
from tollkeeper.serving.config.exposure import exposures
from tollkeeper.serving.config.file_stores import judge_file_store, shown_place, unusable
from tollkeeper.serving.config.findings import Findings
from tollkeeper.serving.config.network_check import check_networks, judge_default_payee
from tollkeeper.serving.process.machine import machine_findings
from tollkeeper.settings.loading import inspect_settings
from tollkeeper.settings.model import Role, SettingProblem
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.gateway.reseals import sealed_under
from tollkeeper.storage.urls import open_snapshot, pending, server_of, shown_url, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tollkeeper.core.keys.sealing import KeyRing
    from tollkeeper.settings.model import NetworkSettings, Settings

_NOT_SET = "(not set)"
BY_DOCTOR: Final = "`tollkeeper doctor` looks"


def check_configuration(role: Role, config: Path | None, *, asks: bool = True) -> Findings:
    """Everything there is to say about a configuration. `asks`: nodes, and a bucket; else nothing leaves this machine.

    Raises: SettingsError where the configuration's file cannot be read at all.
    """
    settings, wrong = inspect_settings(role, config)
    return check_settings(settings, wrong, asks=asks)


def check_settings(settings: Settings, wrong: Sequence[SettingProblem] = (), *, asks: bool = True) -> Findings:
    """The same for settings that were read, with what was found `wrong` then."""
    found = Findings(describe(settings), errors=[*wrong], unchecked=_unchecked(settings, asks=asks))
    found.warnings += _warnings(settings)
    found.add(_database_findings(settings))
    if asks:
        found.add(check_networks(settings))
    if settings.role is not Role.HUB:
        found.add(judge_default_payee(settings, asks=asks))
        found.add(judge_file_store(settings.files, asks=asks))
    return found


def describe(settings: Settings) -> list[tuple[str, str]]:
    """The effective settings by name. Of secrets it tells ids and public addresses, of node URLs the origin."""
    values = [
        ("config", _NOT_SET if settings.config_path is None else str(settings.config_path)),
        ("host", settings.host),
        ("port", str(settings.port)),
        ("public_url", settings.public_url.text),
        ("database_url", shown_url(settings.database_url)),
    ]
    if settings.role is Role.GATEWAY:
        values.append(("hub_url", settings.hub_url or _NOT_SET))
    for network in settings.networks.values():
        values += _describe_network(network)
    if settings.role is not Role.HUB:
        values += [
            ("default_network", _NOT_SET if settings.default_network is None else settings.default_network.name),
            ("default_payment_address", _spelled(settings.default_payment_address)),
            ("app_url", settings.app_url or "none: there is no dashboard"),
            ("anonymous_paygates", settings.anonymous_paygates.value),
            ("allow_private_targets", str(settings.allow_private_targets).lower()),
            ("challenge_profile", settings.challenge_profile.value),
            ("files", shown_place(settings.files.place)),
            ("files_min_free_mb", str(settings.files.min_free_bytes >> 20)),
            ("download_lifetime_seconds", str(settings.files.link_lifetime_seconds)),
            ("request_log_days", str(settings.kept.log_days)),
            ("statistics_days", str(settings.kept.sum_days)),
            ("journal_days", str(settings.kept.journal_days)),
            ("assume_valid_max_payments", str(settings.exposure.payer.purchases)),
            ("assume_valid_max_value", format_usdc(settings.exposure.payer.value_micro)),
            ("unpaid_requests_per_minute", str(settings.request_limits.unpaid)),
            ("api_requests_per_minute", str(settings.request_limits.api)),
            ("login_requests_per_minute", str(settings.request_limits.login)),
            ("call_body_max_mb", str(settings.call_body_size_bytes >> 20)),
            ("encryption_keys", _ids(settings.encryption_keys)),
        ]
    if settings.role is not Role.GATEWAY:
        values += _of_hub(settings)
    return [
        *values,
        ("auth_keys", _ids(settings.auth_keys)),
        ("trusted_proxies", ", ".join(map(str, settings.trusted_proxies)) or "none"),
        ("trusted_issuers", ", ".join(settings.trusted_issuers) or "none"),
        ("cors_origins", ", ".join(settings.cors_origins) or "none"),
        ("min_price", format_usdc(settings.min_price_micro)),
        ("log_level", settings.log_level.value),
        ("log_format", settings.log_format.value),
        ("workers", str(settings.workers)),
        ("metrics_address", _endpoint(settings.metrics_address)),
        ("idle_timeout_seconds", str(settings.patience.idle_seconds)),
        ("shutdown_timeout_seconds", str(settings.shutdown_timeout_seconds)),
    ]


def _of_hub(settings: Settings) -> list[tuple[str, str]]:
    return [
        ("confirm_depth", str(settings.depths.blocks)),
        ("confirm_depth_steps", _steps(settings)),
        ("confirm_nodes", str(settings.confirm_nodes)),
        ("max_fee_per_gas_wei", str(settings.gas.max_fee_per_gas_wei)),
        ("gas_limit", str(settings.gas.gas_limit)),
        ("gas_budget_per_hour", str(settings.gas.budget_per_hour)),
        ("batch_queue_depth", str(settings.batch_queue_depth)),
        ("fee_budget_per_hour_lamports", str(settings.gas.budget_per_hour_lamports)),
        *_fee_payers(settings),
    ]


def _endpoint(address: tuple[str, int] | None) -> str:
    return "none" if address is None else f"{address[0]}:{address[1]}"


def _steps(settings: Settings) -> str:
    """Those of every network, or each network's own."""

    def spelled(depths: Depths) -> str:
        return ", ".join(f"{format_usdc(amount)}:{blocks}" for amount, blocks in depths.steps) or "none"

    networks = [network.network for network in settings.networks.values()]
    if settings.depths.steps is not None or not networks:
        return spelled(Depths(steps=settings.depths.steps or ()))
    return "; ".join(f"{spelled(settings.depths.of(network))} on {network.name}" for network in networks)


def _fee_payers(settings: Settings) -> list[tuple[str, str]]:
    """Return the payers on the networks that are on, or would be on any, so that the operator can fund them."""
    told = []
    for family in dict.fromkeys(one.network.family for one in settings.networks.values()) or FAMILIES:
        row = FAMILIES[family]
        accounts = [one for key in settings.signer_keys for one in row.fee_accounts(key.reveal())]
        told.append((row.fee_payers_name, ", ".join(accounts) or _NOT_SET))
    return told


def _describe_network(network: NetworkSettings) -> list[tuple[str, str]]:
    section = f"networks.{network.network.name}"
    values = [
        (f"{section}.rpc_url", ", ".join(map(_origin, network.rpc_urls)) or _NOT_SET),
        (f"{section}.asset", shown_address(network.network.usdc.address)),
    ]
    batcher = None if network.batcher is None else checksum_address(network.batcher)
    factories = ", ".join(map(checksum_address, network.wallet_factories)) or None
    named = (
        ("asset_name", network.asset_name),
        ("asset_version", network.asset_version),
        ("batcher", batcher),
        ("token_2022", "true" if network.is_token_2022 else None),
        ("wallet_factories", factories),
    )
    return values + [(f"{section}.{name}", value) for name, value in named if value is not None]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    rest = "/..." if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{rest}"


def _spelled(address: str | None) -> str:
    return _NOT_SET if address is None else shown_address(address)


def _ids(ring: KeyRing | None) -> str:
    return _NOT_SET if ring is None else f"{', '.join(ring.keys)} (current: {ring.current})"


def _database_findings(settings: Settings) -> Findings:
    """Check the database. Nothing is read of one that lacks migrations: a start applies them."""
    found, unknown = Findings(), 0
    try:
        is_file = server_of(settings.database_url) is None
        if is_file and (problem := unusable(sqlite_path(settings.database_url).parent)):
            found.fail("database_url", problem)
        elif not pending(settings.database_url) and settings.encryption_keys is not None:
            with open_snapshot(settings.database_url) as snapshot:
                _, unknown = sealed_under(snapshot, [*settings.encryption_keys.keys])
    except StorageError as error:
        found.fail("database_url", error.message)
    if unknown:
        problem = f"{unknown} values in the database are sealed under keys that it lacks"
        found.warn("encryption_keys_file", problem, "put those keys back, below the first")
    return found


def _warnings(settings: Settings) -> list[SettingProblem]:
    warnings = exposures(settings) + machine_findings(settings.role)
    if any(network.wallet_factories for network in settings.networks.values()):
        name, problem = "wallet_factories", "strangers' wallets are deployed with the hub's gas money"
        warnings.append(
            SettingProblem(name, problem, "list only factories that you trust to deploy wallets and nothing else")
        )
    mixed = {network.network.is_test for network in settings.networks.values()}
    if len(mixed) > 1:
        warnings.append(SettingProblem("networks", "play money and real money are both enabled", "run them apart"))
    return warnings


def _unchecked(settings: Settings, *, asks: bool) -> list[str]:
    """Say what this check cannot know, or was told to leave out."""
    told = [
        f"does {settings.public_url.text} lead here (its name, its certificate, a proxy in front): {BY_DOCTOR}",
        f"are the disk, the clock and the limits of each node as they should be: {BY_DOCTOR}",
    ]
    if settings.role is Role.GATEWAY:
        told.append(f"does {settings.hub_url or 'the hub'} answer, and take this gateway's networks")
    if settings.trusted_issuers:
        told.append(f"do {', '.join(settings.trusted_issuers)} answer")
    silent = [name for name, network in settings.networks.items() if not network.rpc_urls]
    if silent:
        told.append(f"nothing was asked on {', '.join(silent)}: no node is set")
    if not asks:
        told.append("are nodes of their networks, can accounts pay for settlements, is the bucket there (--offline)")
    return told
