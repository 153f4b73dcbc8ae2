"""Assets that the facilitator settled on each network when that was last heard of (contract 4.3).

A payment on a network that is away for a while, or at a start whose facilitator is, may hold credits. Such a payment is
read by these assets. They do not say what can be paid with now.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS
from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.core.payment_offers import Asset
    from tollkeeper.storage.engine.database import Database, Steps

_Q: Final = load_queries("gateway.sql")


class SettledAssets:
    """Those of one gateway; `known` by network, for `learn` to add to."""

    def __init__(self, database: Database) -> None:
        self.known: Mapping[str, Asset] = {}
        self._kept: Mapping[str, Asset] = {}  # by the database
        self._database = database

    async def recall(self) -> None:
        """Read what is kept. Raises: StorageError."""
        assets: dict[str, Asset] = {}
        for row in await self._database.read(_Q.settled_assets()):
            network = NETWORKS.get(row["network"])  # None: of another version of this program
            if network is None:
                continue
            asset = FAMILIES[network.family].asset.of_kind(network, json.loads(row["shown"]), json.loads(row["extra"]))
            if asset is not None:
                assets[network.name] = asset
        self.known = self._kept = assets

    async def learn(self, assets: Mapping[str, Asset]) -> None:
        """These are settled now. Raises: StorageError; they are known all the same, and kept with the next."""
        self.known = {**self.known, **assets}
        changed = {network: asset for network, asset in self.known.items() if self._kept.get(network) != asset}
        if changed:
            await self._database.run(_keep(changed))
            self._kept = {**self._kept, **changed}


@unit_of_work
def _keep(assets: Mapping[str, Asset]) -> Steps[None]:
    for network, asset in assets.items():
        yield _Q.keep_asset(network=network, shown=json.dumps(asset.shown), extra=json.dumps(asset.extra))
