"""The networks that this hub settles on and the accounts that pay for each (contract 5.2, 5.3).

What a network is called, whether its node has answered and which asset is taken there. What a settlement is, is not
decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.networks import ALIASES
from tollkeeper.core.verification import judged_signature, signature_check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.chains.evm import EvmChain
    from tollkeeper.core.verification import Check, EvmAsset
    from tollkeeper.core.wire import EvmPayload
    from tollkeeper.hub.company import Company
    from tollkeeper.hub.gas import Gas
    from tollkeeper.hub.signer_pool import SignerPool

RETRY_AFTER_SECONDS: Final = 2


@dataclass(frozen=True, slots=True)
class Account:
    """One network with the signers that settle on it, and what that may cost in an hour."""

    chain: EvmChain
    signers: SignerPool
    gas: Gas
    company: Company

    @property
    def caller(self) -> str:
        """From whom a settlement is simulated: the token does not ask who carries an authorization out."""
        return self.signers.addresses[0]


def enabled_assets(accounts: Mapping[str, Account]) -> dict[str, EvmAsset]:
    """The asset of each network that can be settled on now, by the network's name."""
    return {name: account.chain.asset for name, account in accounts.items() if account.chain.asset is not None}


def require_reachable(accounts: Mapping[str, Account], network: str) -> None:
    """Raises: UNAVAILABLE for a network that is ours and whose node has not answered yet."""
    account = accounts.get(ALIASES.get(network, network))
    if account is not None and account.chain.asset is None and not account.chain.is_refused:
        raise unavailable("its node does not answer")


async def checked_signature(account: Account, asset: EvmAsset, payload: EvmPayload) -> Check:
    """Is the payment signed, by the payer's key or else by what its code says? A node is asked only in the second case.

    A payment must pass this before anything about it is told or begun: its identity says nothing of its signature.
    A payer that has code beside a key that signed is left to the simulation. Raises: UNAVAILABLE.
    """
    by_key = signature_check(payload, asset)
    if by_key.ok:
        return by_key
    try:
        return judged_signature(by_key, await account.chain.wallet_accepts(payload, asset))
    except RpcUnavailable as error:
        raise unavailable(str(error)) from error


def unavailable(reason: str) -> ApiError:
    """503: the chain cannot be asked, and nothing was started."""
    return ApiError(
        Code.UNAVAILABLE,
        f"the network cannot be used at the moment: {reason}",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )
