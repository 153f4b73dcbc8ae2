"""What hubs must have alike that share a database, each a program of its own (contract 5.2; security F20).

A hub takes over what another one carried, on every network, so it must be able to settle all of it; and it tells
transactions of our signers from others' by the keys that it has. Everything else that differs harms nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.core.evm import address_of_key
from tollkeeper.storage.file_lock import Sharing
from tollkeeper.storage.leases import all_ended

if TYPE_CHECKING:
    from tollkeeper.settings import Settings


def sharing_of(settings: Settings) -> Sharing | None:
    """None where the database is this program's alone."""
    if not settings.is_database_shared:
        return None
    networks = sorted(f"{one.network.name}:{one.network.usdc.address}" for one in settings.networks.values())
    signers = sorted(address_of_key(key.reveal()) for key in settings.signer_keys)
    return Sharing(f"networks {', '.join(networks)} and signers {', '.join(signers)}", all_ended())
