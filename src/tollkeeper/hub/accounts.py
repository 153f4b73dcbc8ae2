"""The networks that this hub settles on: which of them can be used now, and for whom (contract 5.2, 5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tollkeeper.core.networks import ALIASES
from tollkeeper.hub.refusals import unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.core.solana import SolanaAsset
    from tollkeeper.core.x402.verification import EvmAsset
    from tollkeeper.hub.evm.account import EvmAccount
    from tollkeeper.hub.settlement.requests import Asker
    from tollkeeper.hub.solana.account import SolanaAccount

AnyAccount: TypeAlias = "EvmAccount | SolanaAccount"


def enabled_assets(accounts: Mapping[str, AnyAccount]) -> dict[str, EvmAsset | SolanaAsset]:
    """Return the asset of each network that can be settled on now, by the network's name."""
    return {name: account.chain.asset for name, account in accounts.items() if account.chain.asset is not None}


def require_reachable(accounts: Mapping[str, AnyAccount], network: str) -> None:
    """Raises: UNAVAILABLE for a network that is ours and whose node has not answered yet."""
    account = accounts.get(ALIASES.get(network, network))
    if account is not None and account.chain.asset is None and not account.chain.is_refused:
        raise unavailable("its node does not answer")


def require_answers_for(account: AnyAccount, asker: Asker) -> None:
    """Keep what the network's nodes serve for sales, where they limit it.

    Raises: UNAVAILABLE for a stranger who has had his share.
    """
    if not asker.is_trusted and not account.chain.rpc.quota.may_ask(asker.tenant):
        raise unavailable("its nodes limit how often they are asked, and strangers have had their share")
