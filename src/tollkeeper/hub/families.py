"""The hub's table of families: what its networks, settlements and keys are made of, one row each (contract 5.2).

The rest of the hub asks here and knows no family. What differs between them is in `hub.evm` and `hub.solana`, under the
same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.evm.config import EvmConfig
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import RENT_EXEMPT_LAMPORTS, SolanaConfig
from tollkeeper.core.keys.keyring import fee_payer_seeds
from tollkeeper.core.limits import PAYER_FAILURES_MAX, PAYER_UNDER_WAY_MAX
from tollkeeper.core.networks import ALIASES, Family
from tollkeeper.hub.admission import Admission, FeeBudget
from tollkeeper.hub.evm.account import EvmAccount
from tollkeeper.hub.evm.batch import BatchPlanner
from tollkeeper.hub.evm.family import EvmFamily
from tollkeeper.hub.evm.signer import NetworkSigner, Signer, SignerPolicy
from tollkeeper.hub.evm.watch import EvmWatch
from tollkeeper.hub.refusals import LogThrottle, unavailable
from tollkeeper.hub.settlement.flow import SettlementFlow
from tollkeeper.hub.settlement.recovery import SettlementRecovery
from tollkeeper.hub.signer_pool import Relayer, SignerBalance, SignerPool
from tollkeeper.hub.solana.account import SolanaAccount
from tollkeeper.hub.solana.family import SolanaFamily
from tollkeeper.hub.solana.signer import FeePayer
from tollkeeper.hub.solana.watch import SolanaWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

    from tollkeeper.core.solana.rules import SolanaAsset
    from tollkeeper.core.x402.verification import EvmAsset, Reason
    from tollkeeper.core.x402.version1 import Payment
    from tollkeeper.hub.metrics import HubMetrics
    from tollkeeper.hub.settlement.family import SettlementParts
    from tollkeeper.hub.settlement.orders import Order, PriorOutcome, SettleOutcome
    from tollkeeper.hub.settlement.outcomes import SettlementRecords
    from tollkeeper.hub.settlement.requests import Asker

AnySigner: TypeAlias = Signer | FeePayer
# Here alone an order's family is found by its account, and not by its type.
AnyOrder: TypeAlias = "Order[Any, Any]"
AnyFlow: TypeAlias = "SettlementFlow[Any, Any, Any]"
AnyRecovery: TypeAlias = "SettlementRecovery[Any, Any, Any]"
# On Solana what no block takes costs its payer nothing: so many payers it takes, at least, to fill the queue with it.
_PAYERS_OF_A_FULL_QUEUE: Final = 100


@dataclass(frozen=True, slots=True)
class HubNetwork:
    """One network and what signs there, at least one: both of the same family."""

    config: EvmConfig | SolanaConfig
    signers: Sequence[AnySigner]

    @property
    def family(self) -> Family:
        """Family of the account's network."""
        return self.config.network.family


@dataclass(frozen=True, slots=True)
class HubContext:
    """Parts that all accounts of a hub share. `trusted_keys`: gateways exempt from the strangers' share of the gas."""

    metrics: HubMetrics
    trusted_keys: Sized
    clock_ms: Callable[[], int]


def signers_of(family: Family, keys: Iterable[bytes]) -> list[AnySigner]:
    """Return the signers on the family's networks for a hub with these keys, in their order."""
    if family is Family.EVM:
        return [Signer(key) for key in keys]
    return [FeePayer(seed) for key in keys for seed in fee_payer_seeds(key)]


def account_of(network: HubNetwork, context: HubContext) -> AnyAccount:
    """Return the network as the endpoints see it.

    Raises: ValueError for signers of which there is none, or one twice, and for another family's configuration.
    """
    config, signers = network.config, network.signers
    if isinstance(config, EvmConfig) and network.family is Family.EVM:
        return _evm_account(config, [one for one in signers if isinstance(one, Signer)], context)
    if isinstance(config, SolanaConfig) and network.family is Family.SOLANA:
        return _solana_account(config, [one for one in signers if isinstance(one, FeePayer)], context)
    raise ValueError(f"{config.network.name} is configured as a network of another family")


def _evm_account(config: EvmConfig, signers: Sequence[Signer], context: HubContext) -> EvmAccount:
    name, chain_id = config.network.name, config.network.chain_id
    assert chain_id is not None  # noqa: S101 - an EVM network has one
    planner = BatchPlanner(config)

    def relayer(signer: Signer) -> Relayer[NetworkSigner]:
        policy = SignerPolicy(
            chain_id=chain_id,
            assets=frozenset({config.asset.lower() or config.network.usdc.address}),
            gas_max=config.gas_limit,
            max_fee_per_gas_max=config.max_fee_per_gas_wei,
            own=signer.address,
            carriers=planner.allowed,
            factories=frozenset(config.wallet_factories),
            deploy_gas_max=config.deploy_gas_limit,
        )
        balance = SignerBalance(name, signer.address, config.gas_limit, context.metrics)
        return Relayer(NetworkSigner(signer, policy), balance)

    gas = _budget(name, config.gas_budget_per_hour, "gas_budget_per_hour", context)
    pool = SignerPool([relayer(signer) for signer in signers])
    return EvmAccount(EvmChain(config), pool, gas, _admission(config, context), planner)


def _solana_account(config: SolanaConfig, signers: Sequence[FeePayer], context: HubContext) -> SolanaAccount:
    name = config.network.name

    def relayer(signer: FeePayer) -> Relayer[FeePayer]:
        reserve, fee_max = RENT_EXEMPT_LAMPORTS, config.fee_max_lamports
        return Relayer(signer, SignerBalance(name, signer.address, fee_max, context.metrics, "lamports", reserve))

    gas = _budget(name, config.fee_budget_per_hour_lamports, "fee_budget_per_hour_lamports", context)
    share = max(PAYER_FAILURES_MAX, config.settlements_max // _PAYERS_OF_A_FULL_QUEUE)
    admission = _admission(config, context, min(PAYER_UNDER_WAY_MAX, share))
    return SolanaAccount(SolanaChain(config), SignerPool([relayer(signer) for signer in signers]), gas, admission)


def _budget(name: str, per_hour: int, setting: str, context: HubContext) -> FeeBudget:
    throttle = LogThrottle(context.clock_ms)
    return FeeBudget(name, per_hour, setting, context.trusted_keys, context.clock_ms, throttle)


def _admission(
    config: EvmConfig | SolanaConfig, context: HubContext, payer_max: int = PAYER_UNDER_WAY_MAX
) -> Admission:
    name, most = config.network.name, config.settlements_max
    return Admission(name, most, context.trusted_keys, context.metrics, LogThrottle(context.clock_ms), payer_max)


class FamilyDispatch:
    """Settles orders of any family, each by its own flow, and makes what finishes them after a crash."""

    def __init__(self, parts: SettlementParts, records: SettlementRecords) -> None:
        self.records = records
        self._parts = parts
        self._evm = SettlementFlow(EvmFamily(parts), parts, records)
        self._solana = SettlementFlow(SolanaFamily(parts), parts, records)

    def _flow(self, account: AnyAccount) -> AnyFlow:
        return self._evm if isinstance(account, EvmAccount) else self._solana

    async def settle(self, order: AnyOrder) -> SettleOutcome:
        """Settle by `SettlementFlow.settle` of the order's family."""
        return await self._flow(order.account).settle(order)

    async def prior(self, account: AnyAccount, payment: Payment, reason: Reason) -> PriorOutcome | None:
        """Return the earlier use of a payment that a verification refuses for this reason. Raises: UNAVAILABLE."""
        return await self._flow(account).family.prior(account, payment, reason)

    def recoveries(self, accounts: Mapping[str, AnyAccount], interval_seconds: float) -> dict[Family, AnyRecovery]:
        """Return the recovery of each family that has accounts."""
        found: dict[Family, AnyRecovery] = {}
        on_evm = {name: account for name, account in accounts.items() if isinstance(account, EvmAccount)}
        if on_evm:
            evm_watch = EvmWatch(self._parts, self._evm.is_active)
            found[Family.EVM] = SettlementRecovery(self._evm, evm_watch, on_evm, self._parts, interval_seconds)
        on_solana = {name: account for name, account in accounts.items() if isinstance(account, SolanaAccount)}
        if on_solana:
            watch = SolanaWatch(self._parts)
            found[Family.SOLANA] = SettlementRecovery(self._solana, watch, on_solana, self._parts, interval_seconds)
        return found


# The networks that this hub settles on: which of them can be used now, and for whom (contract 5.2, 5.3).

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
