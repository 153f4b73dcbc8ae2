"""Settings that open more than their operator may mean to, as warnings of `config check` (contract 1, 3.2)."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core.configuration import AnonymousPaygates, is_loopback
from tollkeeper.settings.model import Role, SettingProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.settings.model import Peers, Settings

# No provider of proxies has a network as large as one with a shorter prefix.
_PREFIX_MIN: Final = {4: 8, 6: 16}


def exposures(settings: Settings) -> list[SettingProblem]:
    """Return everything that is unwise about who can reach this process, and whom it believes."""
    return [
        *_own_address(settings),
        *_strangers(settings),
        *_gas(settings),
        *_peers(settings),
        *_same_nodes(settings),
        *_clear_text(settings),
    ]


def _own_address(settings: Settings) -> Iterator[SettingProblem]:
    is_local = settings.public_url.is_loopback
    if is_local and not is_loopback(settings.host):
        problem = f"it is this machine's own, and {settings.host} listens to others"
        yield SettingProblem("public_url", problem, "give the URL by which they come, or listen on 127.0.0.1")
    if not is_local and settings.public_url.text.startswith("http://"):
        yield SettingProblem("public_url", "it is not https", "payments and tokens cross the network in clear")
    address = settings.metrics_address
    if address is not None and _is_public(address[0]):
        problem = f"{address[0]} is an address that others may reach, and whoever does reads your trade"
        yield SettingProblem("metrics_address", problem, "give one of this machine or of a private network")


def _is_public(host: str) -> bool:
    """Judge a name as public, too: nobody says to where it leads."""
    if is_loopback(host):
        return False
    try:
        address = ip_address(host)
    except ValueError:
        return True
    return address.is_unspecified or not address.is_private


def _strangers(settings: Settings) -> Iterator[SettingProblem]:
    """Warn of what a host that others reach lets them do at its gateway."""
    is_private = settings.public_url.is_loopback and is_loopback(settings.host) and not settings.trusted_proxies
    if is_private or settings.role is Role.HUB:
        return
    if settings.allow_private_targets:
        yield SettingProblem("allow_private_targets", "it is true", "gates can sell what only your network may see")
    if settings.anonymous_paygates is AnonymousPaygates.MANAGE:
        yield SettingProblem("anonymous_paygates", "it is manage", "anyone can change gates that have no owner")
    elif settings.anonymous_paygates is AnonymousPaygates.CREATE:
        problem = "it is create, and this host is public"
        yield SettingProblem("anonymous_paygates", problem, "anyone can sell through it without a login; set it to off")


def _gas(settings: Settings) -> Iterator[SettingProblem]:
    """Warn of a public hub of real money that settles payments of next to nothing for anybody."""
    is_real = any(not network.network.is_test for network in settings.networks.values())
    is_public = settings.role is not Role.GATEWAY and not settings.public_url.is_loopback
    if is_public and is_real and not settings.min_price_micro:
        problem = "it is 0: strangers can have payments of next to nothing settled at your gas, within its budget"
        yield SettingProblem("min_price", problem, "set it to what a settlement costs you")


def _peers(settings: Settings) -> Iterator[SettingProblem]:
    wide = [str(peers) for peers in settings.trusted_proxies if _is_everything(peers)]
    if wide:
        problem = f"{', '.join(wide)} is not a proxy's network but everybody's"
        remedy = "any caller names the address that limits count and targets are told; name your proxies' own"
        yield SettingProblem("trusted_proxies", problem, remedy)
        return
    is_behind_own = is_loopback(settings.host) and not settings.public_url.is_loopback
    if is_behind_own and not any(peers.network_address.is_loopback for peers in settings.trusted_proxies):
        problem = "a proxy on this machine is in front, and not named: all callers have its address, and no limit"
        yield SettingProblem("trusted_proxies", problem, f'name it, as in ["{settings.host}"]')


def _is_everything(peers: Peers) -> bool:
    return peers.prefixlen < _PREFIX_MIN[peers.version]


def _same_nodes(settings: Settings) -> Iterator[SettingProblem]:
    """Warn of a second node that is the first one's provider: it vouches for what that one said."""
    for name, network in settings.networks.items():
        hosts = Counter(urlsplit(url).hostname or "" for url in network.rpc_urls)
        same = [host for host, count in hosts.items() if count > 1 and not is_loopback(host)]
        if same:
            problem = f"{' and '.join(same)} is named more than once, and vouches for itself"
            yield SettingProblem(f"networks.{name}.rpc_url", problem, "name nodes of different providers")


def _clear_text(settings: Settings) -> list[SettingProblem]:
    """Warn of http to others: whoever is on the way reads it, and answers in their place."""
    asked = [("hub_url", url) for url in (settings.hub_url,) if url is not None]
    asked += [("trusted_issuers", url) for url in settings.trusted_issuers]
    for network in settings.networks.values():
        asked += [(f"networks.{network.network.name}.rpc_url", url) for url in network.rpc_urls]
    return [
        SettingProblem(name, f"http to {host} can be read and answered by whoever is on the way", "use https")
        for name, url in asked
        if urlsplit(url).scheme == "http" and not is_loopback(host := urlsplit(url).hostname or "")
    ]
