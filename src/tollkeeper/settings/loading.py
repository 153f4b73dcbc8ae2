"""Loading of all settings: the meaning and the default of each (contract 1, 3.2, 4.4, 5.2, 6)."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.core import configuration as text_of
from tollkeeper.core.configuration import AnonymousPaygates, Bucket, LogFormat, LogLevel, PublicUrl
from tollkeeper.core.evm.batches import DEPLOYER_ADDRESS, MULTICALL_ADDRESS
from tollkeeper.core.evm.encoding import parse_address
from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.keys.keyring import Secret, parse_key_ring, parse_private_keys
from tollkeeper.core.limits import CALL_BODY_SIZE_BYTES, JOURNAL_DAYS, REQUEST_LOG_DAYS, STATISTICS_DAYS
from tollkeeper.core.networks import NETWORKS, Asset, Family, Network
from tollkeeper.core.paygates.challenge import Profile
from tollkeeper.core.paygates.statistics import Kept
from tollkeeper.core.solana.base58 import parse_key
from tollkeeper.core.trust import DEFAULT_EXPOSURE, Exposure, TrustCaps
from tollkeeper.core.wallets import parse_wallet
from tollkeeper.settings.model import (
    DepthSettings,
    FileSettings,
    GasCaps,
    NetworkSettings,
    Role,
    SettingProblem,
    Settings,
    SettingsError,
)
from tollkeeper.settings.sources import Sources, find_config, network_setting, read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tollkeeper.core.keys.sealing import KeyRing

# Addresses, as errors of settings name them.
_MINT: Final = partial(parse_key, field="it")
_ADDRESS: Final = partial(parse_address, field="it")
_WALLET: Final = partial(parse_wallet, field="it")
WORKERS_MAX: Final = 256
_ONE_WORKER: Final = "one process serves on SQLite; several share a PostgreSQL database; nothing was started"
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_METRICS_ADDRESS: Final = (DEFAULT_HOST, 8403)
DEFAULT_PORT: Final = {Role.SERVE: 8402, Role.GATEWAY: 8402, Role.HUB: 8404}
_COLLECTORS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DATABASE_NAME: Final = {Role.SERVE: "tollkeeper.db", Role.GATEWAY: "gateway.db", Role.HUB: "hub.db"}


def load_settings(
    role: Role,
    config: Path | None = None,
    *,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a process. `environ` is the process's own unless given; `overrides` are a command's options.

    Raises: SettingsError with everything that is wrong.
    """
    settings, findings = inspect_settings(role, config, overrides=overrides, environ=environ)
    if findings:
        raise SettingsError(findings)
    return settings


def inspect_settings(
    role: Role,
    config: Path | None = None,
    *,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, tuple[SettingProblem, ...]]:
    """The settings with defaults where something is wrong, and everything that is wrong: to be shown, not to be used.

    Raises: SettingsError where the file cannot be read at all.
    """
    environ = os.environ if environ is None else environ
    path = find_config(config, environ)
    base = Path() if path is None else path.absolute().parent
    sources = Sources(read_toml(path), environ, overrides or {}, base)
    settings = replace(_build(sources, role, path), exports_spans=any(map(environ.get, _COLLECTORS)))
    sources.report_unknown()
    return settings, tuple(sources.findings)


def _build(sources: Sources, role: Role, path: Path | None) -> Settings:
    take = sources.take
    host = take("host", text_of.parse_host, DEFAULT_HOST)
    port = take("port", text_of.whole_number(0, 65535), DEFAULT_PORT[role])
    public_url = _public_url(sources, host, port)
    trusted_proxies = sources.several("trusted_proxies", text_of.parse_peers)
    anonymous = text_of.default_anonymous_paygates(public_url, behind_proxy=bool(trusted_proxies))
    networks = _networks(sources, role)
    confirm_nodes = _confirm_nodes(sources, networks)
    encryption_keys, auth_keys, signer_keys = _keys(sources, role)
    database_url = _database_url(sources, role)
    return Settings(
        role=role,
        config_path=path,
        host=host,
        port=port,
        public_url=public_url,
        hub_url=_hub_url(sources, role, {public_url.text, text_of.local_url(host, port)}),
        database_url=database_url,
        files=_files(sources),
        networks=networks,
        default_network=_default_network(sources, role, networks),
        default_payment_address=sources.optional("default_payment_address", _WALLET),
        anonymous_paygates=take("anonymous_paygates", text_of.choice(AnonymousPaygates), anonymous),
        allow_private_targets=take("allow_private_targets", text_of.parse_boolean, default=False),
        challenge_profile=take("challenge_profile", text_of.choice(Profile), Profile.SUPERSET),
        exposure=_exposure(sources),
        trusted_proxies=trusted_proxies,
        trusted_issuers=sources.several("trusted_issuers", text_of.parse_url),
        cors_origins=sources.several("cors_origins", lambda text: text_of.parse_origin(text).text),
        depths=_depths(sources),
        gas=_gas(sources),
        batch_queue_depth=take("batch_queue_depth", text_of.whole_number(0, 100_000), 16),
        app_url=_app_url(sources, public_url),
        min_price_micro=sources.take("min_price", text_of.parse_usdc_micro, 0),
        encryption_keys=encryption_keys,
        encryption_key_paths=sources.secret_paths("encryption_keys"),
        auth_key_paths=sources.secret_paths("auth_keys"),
        auth_keys=auth_keys,
        signer_keys=signer_keys,
        log_level=take("log_level", text_of.choice(LogLevel), LogLevel.INFO),
        log_format=take("log_format", text_of.choice(LogFormat), LogFormat.AUTO),
        shutdown_timeout_seconds=take("shutdown_timeout_seconds", text_of.whole_number(1, 3600), 600),
        confirm_nodes=confirm_nodes,
        metrics_address=_metrics_address(sources),
        request_limits=_request_limits(sources),
        patience=_patience(sources),
        kept=Kept(
            take("request_log_days", text_of.whole_number(1, 3650), REQUEST_LOG_DAYS),
            take("statistics_days", text_of.whole_number(1, 36_500), STATISTICS_DAYS),
            take("journal_days", text_of.whole_number(0, 36_500), JOURNAL_DAYS),
        ),
        workers=_workers(sources, database_url),
        call_body_size_bytes=take("call_body_max_mb", text_of.whole_number(1, 10**6), CALL_BODY_SIZE_BYTES >> 20) << 20,
    )


def _depths(sources: Sources) -> DepthSettings:
    """Confirmations of all networks; each has steps of its own, unless they are given, if only as nothing."""
    steps = sources.optional("confirm_depth_steps", text_of.list_of(text_of.parse_depth_step))
    if sources.is_empty("confirm_depth_steps"):
        steps = ()
    return DepthSettings(sources.take("confirm_depth", text_of.whole_number(1, 1000), 1), steps)


def _metrics_address(sources: Sources) -> tuple[str, int] | None:
    """Return the address at which metrics are served; an empty setting turns them off."""
    address = sources.take("metrics_address", text_of.parse_address_and_port, DEFAULT_METRICS_ADDRESS)
    return None if sources.is_empty("metrics_address") else address


def _request_limits(sources: Sources) -> RequestLimits:
    default, per_minute = RequestLimits(), text_of.whole_number(0, 10**9)
    api = sources.take("api_requests_per_minute", per_minute, default.api)
    return RequestLimits(
        unpaid=sources.take("unpaid_requests_per_minute", per_minute, default.unpaid),
        api=api,
        wallet=api,
        login=sources.take("login_requests_per_minute", per_minute, default.login),
    )


def _patience(sources: Sources) -> Patience:
    default, seconds = Patience(), text_of.whole_number(2, 3600)  # callers are looked at each second
    return replace(default, idle_seconds=sources.take("idle_timeout_seconds", seconds, default.idle_seconds))


def _workers(sources: Sources, database_url: str) -> int:
    """Return how many processes serve: a SQLite database is one process's."""
    count = sources.take("workers", text_of.whole_number(1, WORKERS_MAX), 1)
    if count > 1 and database_url.startswith("sqlite:"):
        sources.report("workers", _ONE_WORKER, "leave it out, or name a PostgreSQL database in database_url")
    return count


def _confirm_nodes(sources: Sources, networks: Mapping[str, NetworkSettings]) -> int:
    """Return how many nodes of each network that has nodes must agree; 0: two, if another one can be reached."""
    needed = sources.take("confirm_nodes", text_of.whole_number(0, 10), 0)
    for name, settings in networks.items():
        if settings.rpc_urls and len(settings.rpc_urls) < needed:
            has = f"{name} has {len(settings.rpc_urls)} of them"
            sources.report(
                "confirm_nodes", has, f"give {needed} URLs in rpc_url of [networks.{name}], or ask for fewer"
            )
    return needed


def _exposure(sources: Sources) -> TrustCaps:
    default = DEFAULT_EXPOSURE.payer
    payments = sources.take("assume_valid_max_payments", text_of.whole_number(1, 10**6), default.purchases)
    value_micro = sources.take("assume_valid_max_value", text_of.parse_usdc_micro, default.value_micro)
    return TrustCaps(Exposure(payments, value_micro), Exposure(10 * payments, 10 * value_micro))


def _gas(sources: Sources) -> GasCaps:
    default = GasCaps()
    return GasCaps(
        sources.take("max_fee_per_gas_wei", text_of.whole_number(1, 10**15), default.max_fee_per_gas_wei),
        sources.take("gas_limit", text_of.whole_number(50_000, 10_000_000), default.gas_limit),
        sources.take("gas_budget_per_hour", text_of.whole_number(50_000, 10**15), default.budget_per_hour),
        sources.take(
            "fee_budget_per_hour_lamports", text_of.whole_number(10_000, 10**15), default.budget_per_hour_lamports
        ),
    )


def _keys(sources: Sources, role: Role) -> tuple[KeyRing | None, KeyRing | None, tuple[Secret[bytes], ...]]:
    """The keys that encrypt what the gateway stores, that sign logins, and that sign settlements."""
    encrypts = None if role is Role.HUB else "the gateway encrypts what it stores"
    settles = None if role is Role.GATEWAY else "the hub signs settlements"
    return (
        sources.secret("encryption_keys", parse_key_ring, encrypts),
        sources.secret("auth_keys", parse_key_ring, "logins are signed"),
        sources.secret("signer_key", parse_private_keys, settles) or (),
    )


def _public_url(sources: Sources, host: str, port: int) -> PublicUrl:
    """Return the URL at which the world reaches us. It need not be set only if it is this machine alone."""
    local = PublicUrl(text_of.local_url(host, port), host)
    if sources.text("public_url") is None and not local.is_loopback:
        sources.report("public_url", "it is not set", "give the URL by which clients reach this process")
    return sources.take("public_url", text_of.parse_origin, local)


def _app_url(sources: Sources, public_url: PublicUrl) -> str | None:
    """Return the dashboard's origin. Where others reach us it is one of its own, which holds no page of a stranger."""
    app_url = sources.optional("app_url", text_of.parse_origin)
    if app_url is None:
        return public_url.text if public_url.is_loopback else None
    if app_url.text.lower() == public_url.text.lower() and not public_url.is_loopback:
        sources.report("app_url", "it is public_url", "give a host name of its own, which leads here as well")
    return app_url.text


def _hub_url(sources: Sources, role: Role, own: set[str]) -> str | None:
    """The facilitator's; None unless a gateway asks it. `own`: where this process is itself."""
    url = sources.optional("hub_url", text_of.parse_url)
    if role is Role.GATEWAY and sources.text("hub_url") is None:
        sources.report("hub_url", "it is not set", "give the URL of a Tollkeeper hub or another x402 facilitator")
    if role is Role.GATEWAY and url in own:
        sources.report("hub_url", "it is the URL of this gateway itself", "give the hub's")
    return url if role is Role.GATEWAY else None


def _database_url(sources: Sources, role: Role) -> str:
    default = f"{sources.text('data_dir') or 'data'}/{_DATABASE_NAME[role]}"
    url = sources.take("database_url", text_of.parse_database_url, default)
    path = url.removeprefix("sqlite:///")
    return url if "://" in path else f"sqlite:///{sources.base / path}"


def _files(sources: Sources) -> FileSettings:
    place = sources.optional("files", text_of.parse_files) or str(Path(sources.text("data_dir") or "data") / "files")
    default = FileSettings(Path())
    megabytes = text_of.whole_number(0, 10**9)
    return FileSettings(
        place if isinstance(place, Bucket) else sources.base / place,
        sources.take("files_min_free_mb", megabytes, default.min_free_bytes >> 20) << 20,
        sources.take("download_lifetime_seconds", text_of.whole_number(10, 43_200), default.link_lifetime_seconds),
    )


def _networks(sources: Sources, role: Role) -> dict[str, NetworkSettings]:
    """Every network with a node, and for a gateway alone every one that the file has a section for."""
    networks: dict[str, NetworkSettings] = {}
    for name, network in NETWORKS.items():
        node = network_setting("rpc_url", name)
        urls = sources.several(node, text_of.parse_rpc_url)
        if len({url.rstrip("/") for url in urls}) < len(urls):  # it would bear witness to what it said itself
            sources.report(node, "a node is named twice", "name each once")
        settings = _OF_FAMILY[network.family](sources, network, urls)
        if urls or name in sources.sections:
            networks[name] = settings
        if not urls and name in sources.sections and role is not Role.GATEWAY:
            sources.report(node, "it is not set", f"give the URL of a JSON-RPC node of {name}")
    known = f"one of {', '.join(NETWORKS)}"
    unknown = sorted(sources.sections - NETWORKS.keys())
    sources.findings += [SettingProblem(f"networks.{name}", "there is no such network", known) for name in unknown]
    if not networks:
        sources.findings.append(SettingProblem("networks", "no network is enabled", _enabling("base-sepolia", role)))
    return networks


def _enabling(network: str, role: Role) -> str:
    """Return advice on how to enable the network: a gateway may have a node, and needs none."""
    return ("write a section" if role is Role.GATEWAY else "set rpc_url of") + f" [networks.{network}]"


def _evm_network(sources: Sources, network: Network, urls: tuple[str, ...]) -> NetworkSettings:
    name = network.name
    known = _with_asset(sources, network, _ADDRESS)
    return NetworkSettings(
        known,
        urls,
        sources.optional(network_setting("asset_name", name), text_of.parse_token_text),
        sources.optional(network_setting("asset_version", name), text_of.parse_token_text),
        sources.optional(network_setting("batcher", name), _ADDRESS),
        wallet_factories=_factories(sources, name, known.usdc.address),
    )


def _solana_network(sources: Sources, network: Network, urls: tuple[str, ...]) -> NetworkSettings:
    known = _with_asset(sources, network, _MINT)
    token_2022 = sources.take(network_setting("token_2022", network.name), text_of.parse_boolean, default=False)
    return NetworkSettings(known, urls, is_token_2022=token_2022)


_OF_FAMILY: Final = {Family.EVM: _evm_network, Family.SOLANA: _solana_network}


def _with_asset(sources: Sources, network: Network, parse: Callable[[str], str]) -> Network:
    asset = sources.take(network_setting("asset", network.name), parse, network.usdc.address)
    return network if asset == network.usdc.address else replace(network, usdc=Asset(asset))


def _factories(sources: Sources, network: str, asset: str) -> tuple[str, ...]:
    """Whom the hub calls to deploy a payer's wallet: contracts that do nothing else, so never the token."""
    setting = network_setting("wallet_factories", network)
    factories = sources.several(setting, _ADDRESS)
    if {asset, MULTICALL_ADDRESS, DEPLOYER_ADDRESS} & set(factories):
        sources.report(setting, "it names a contract that is no wallet factory", "name contracts that deploy wallets")
    return tuple(dict.fromkeys(factories))


def _default_network(sources: Sources, role: Role, networks: Mapping[str, NetworkSettings]) -> Network | None:
    network = sources.optional("default_network", text_of.parse_network)
    if role is Role.HUB:
        return network
    if sources.text("default_network") is None:
        sources.report("default_network", "it is not set", "name the network that new gates are paid on")
    elif network is not None and network.name not in networks:
        sources.report("default_network", f"{network.name} is not enabled", _enabling(network.name, role))
    return network
