"""Settings of a process, after they were found right (contract 1, 3.2, 4.4, 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Final, TypeAlias

from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.limits import CALL_BODY_SIZE_BYTES, DOWNLOAD_LIFETIME_SECONDS
from tollkeeper.core.paygates.statistics import Kept
from tollkeeper.core.settlement.states import Depths
from tollkeeper.core.trust import TrustCaps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tollkeeper.core.configuration import AnonymousPaygates, Bucket, LogFormat, LogLevel, PublicUrl
    from tollkeeper.core.keys.keyring import Secret
    from tollkeeper.core.keys.sealing import KeyRing
    from tollkeeper.core.networks import Network
    from tollkeeper.core.paygates.challenge import Profile

Peers: TypeAlias = IPv4Network | IPv6Network


HUB_PREFIX: Final = "/hub"  # where `serve` has its hub


class Role(StrEnum):
    """Roles of a process: the parts that it runs (contract 1)."""

    SERVE = "serve"
    GATEWAY = "gateway"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One thing that is wrong: which setting, what about it, and what to do."""

    name: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}" + (f": {self.remedy}" if self.remedy else "")


class SettingsError(Exception):
    """The configuration cannot be used; `findings` are all the reasons."""

    def __init__(self, findings: tuple[SettingProblem, ...]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = findings


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """One enabled network. Name and version of its token are read from the chain unless set (contract 5.3)."""

    network: Network
    rpc_urls: tuple[str, ...] = field(repr=False, default=())
    asset_name: str | None = None
    asset_version: str | None = None
    batcher: str | None = None  # where our batcher is, if not at its usual place
    is_token_2022: bool = False  # on Solana: the asset belongs to the program Token-2022
    wallet_factories: tuple[str, ...] = ()  # whom we call to deploy a payer's wallet


@dataclass(frozen=True, slots=True)
class GasCaps:
    """Caps on what one settlement, and an hour on one network, may cost the hub (contract 5.2)."""

    max_fee_per_gas_wei: int = 50_000_000_000
    gas_limit: int = 150_000
    budget_per_hour: int = 18_000_000_000
    budget_per_hour_lamports: int = 2_000_000_000  # on Solana


@dataclass(frozen=True, slots=True)
class DepthSettings:
    """How deep outcomes lie before they are told. `steps`: for larger amounts; None: each network's own."""

    blocks: int = 1
    steps: tuple[tuple[int, int], ...] | None = None

    def of(self, network: Network) -> Depths:
        """On that network."""
        return Depths(self.blocks, network.depth_steps if self.steps is None else self.steps)


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Place for the contents of file PayGates, the space to leave free there (a directory), a link's lifetime."""

    place: Path | Bucket
    min_free_bytes: int = 1024 * 1024 * 1024
    link_lifetime_seconds: int = DOWNLOAD_LIFETIME_SECONDS


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of one process, checked."""

    role: Role
    config_path: Path | None
    host: str
    port: int
    public_url: PublicUrl
    hub_url: str | None
    database_url: str
    files: FileSettings
    networks: Mapping[str, NetworkSettings]
    default_network: Network | None
    default_payment_address: str | None
    anonymous_paygates: AnonymousPaygates
    allow_private_targets: bool
    challenge_profile: Profile
    exposure: TrustCaps
    trusted_proxies: tuple[Peers, ...]
    trusted_issuers: tuple[str, ...]
    cors_origins: tuple[str, ...]
    depths: DepthSettings
    gas: GasCaps
    encryption_keys: KeyRing | None
    encryption_key_paths: tuple[Path, ...]  # none where they come from the environment
    auth_keys: KeyRing | None
    signer_keys: tuple[Secret[bytes], ...]
    log_level: LogLevel
    log_format: LogFormat
    shutdown_timeout_seconds: int
    auth_key_paths: tuple[Path, ...] = ()  # the same
    app_url: str | None = None  # the dashboard's origin; None: there is no dashboard
    min_price_micro: int = 0  # cheaper gates are not made, and smaller payments not settled
    confirm_nodes: int = 0  # how many of a network's nodes must show an outcome; 0: two where others can be reached
    batch_queue_depth: int = 16  # fewer settlements under way go alone: a wait for a batch would only delay them
    exports_spans: bool = False  # OpenTelemetry's environment names a collector
    workers: int = 1  # processes that serve
    metrics_address: tuple[str, int] | None = None  # None: there are no metrics
    request_limits: RequestLimits = field(default_factory=RequestLimits)
    patience: Patience = field(default_factory=Patience)
    kept: Kept = field(default_factory=Kept)
    call_body_size_bytes: int = CALL_BODY_SIZE_BYTES

    @property
    def hub_public_url(self) -> str:
        """Public URL of the gateway's hub, where buyers are told to follow a payment."""
        return self.hub_url or self.public_url.text + HUB_PREFIX
