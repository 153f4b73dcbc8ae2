"""Reading of a facilitator's `/supported`: what we can sell for, and who signs for it. Asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import ALIASES, CAIP2_NAMES, NETWORKS
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.version1 import SCHEME

if TYPE_CHECKING:
    from tollkeeper.core.payment_offers import Asset

_FORMER_NAMES: Final = {**ALIASES, **{name: name for name in NETWORKS}}  # of version 1


def asset_of(kind: object, version: int) -> Asset | None:
    """Return the asset of a kind that we can sell for; None for any other, or one that cannot be read."""
    if not isinstance(kind, dict) or kind.get("scheme") != SCHEME or kind.get("x402Version") != version:
        return None
    name, names = kind.get("network"), CAIP2_NAMES if version == version2.VERSION else _FORMER_NAMES
    network = NETWORKS.get(names.get(name, "")) if isinstance(name, str) else None
    if network is None:
        return None
    extra = kind.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    assets = kind.get("assets")
    first = assets[0] if isinstance(assets, list) and assets and isinstance(assets[0], dict) else {}
    return FAMILIES[network.family].asset.of_kind(network, first, extra)


def signers_of(signers: object) -> frozenset[str]:
    """Return who signs for a facilitator, as it says; EVM addresses in lower case."""
    if not isinstance(signers, dict):
        return frozenset()
    lists = [group for group in signers.values() if isinstance(group, list)]
    names = [item for group in lists for item in group if isinstance(item, str)]
    return frozenset(name.lower() if name.startswith("0x") else name for name in names)
