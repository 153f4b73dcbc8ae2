"""Putting our batcher on a chain (contract 5.2): through the deterministic deployer where it stands, else by itself.

One transaction of one account, which the policy of this module lets pass and nothing else. Through the deployer the
address is the same on every network and for everybody, so that hubs find it without being told. What the contract does
is in `contracts/`; whose key this is and whether it may be used now is the caller's affair.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.evm.batcher import (
    DEPLOYMENT_SALT,
    batcher_address,
    batcher_artifact,
    batcher_code_hash,
    code_hash,
    read_codes,
)
from tollkeeper.chains.evm.blocks import quantity
from tollkeeper.chains.evm.chain import Fees
from tollkeeper.chains.evm.market import TIP_CALLS, read_tips
from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.rpc import Rpc
from tollkeeper.core.evm.batches import DEPLOYER_ADDRESS, DEPLOYER_CODE_HASH
from tollkeeper.core.evm.encoding import checksum_address, keccak256, rlp_encode
from tollkeeper.core.evm.signed_transactions import bounded_tip
from tollkeeper.hub.evm.batch import BatchCall
from tollkeeper.hub.signer_pool import PolicyError

if TYPE_CHECKING:
    from tollkeeper.core.evm.encoding import Transaction
    from tollkeeper.hub.evm.signer import Signer

CREATION: Final = "0x"  # the recipient of a transaction that creates a contract
_GAS: Final = 300_000
_RECEIPT_SECONDS: Final = 120
_POLL_SECONDS: Final = 0.2


class DeploymentError(Exception):
    """Nothing can be deployed, or nobody knows whether it was; the message says why."""


@dataclass(frozen=True, slots=True)
class BatcherDeployment:
    """Place of the batcher. `transaction` is "" if it was there before; `is_usual`: hubs look there unasked."""

    address: str
    transaction: str
    is_usual: bool


@dataclass(frozen=True, slots=True)
class DeploymentPolicy:
    """Lets pass the creation of our batcher on one network, and nothing else. Fees are wei per gas."""

    chain_id: int
    max_fee_per_gas_max: int

    def check(self, transaction: Transaction) -> None:
        """Raises: PolicyError for any other transaction."""
        creation = batcher_artifact().creation
        is_creation = (transaction.to, transaction.data) in {
            (DEPLOYER_ADDRESS, DEPLOYMENT_SALT + creation),
            (CREATION, creation),
        }
        is_bounded = transaction.value == 0 and 0 < transaction.gas <= _GAS
        is_paid = 0 <= transaction.max_priority_fee_per_gas <= transaction.max_fee_per_gas <= self.max_fee_per_gas_max
        if not (is_creation and is_bounded and is_paid and transaction.chain_id == self.chain_id):
            raise PolicyError("this is not the creation of the batcher")


async def deploy_batcher(
    rpc: Rpc, signer: Signer, policy: DeploymentPolicy, *, by_deployer: bool = True
) -> BatcherDeployment:
    """Deploy the batcher, unless it is at its usual place already.

    `by_deployer`: try the deterministic deployer. Raises: DeploymentError; RpcUnavailable.
    """
    there, deployer = await read_codes(rpc.ask, [batcher_address(), DEPLOYER_ADDRESS])
    if by_deployer and code_hash(there) == batcher_code_hash():
        return BatcherDeployment(batcher_address(), "", is_usual=True)
    is_usual = by_deployer and code_hash(deployer) == DEPLOYER_CODE_HASH
    nonce, fees = await _look(rpc, signer, policy)
    creation = batcher_artifact().creation
    to, data = (DEPLOYER_ADDRESS, DEPLOYMENT_SALT + creation) if is_usual else (CREATION, creation)
    transaction = BatchCall(to, data, _GAS).transaction(policy.chain_id, nonce, fees)
    raw, transaction_hash = signer.sign(transaction, policy)
    address = batcher_address() if is_usual else created_address(signer.address, nonce)
    try:
        await rpc.send_raw(raw)
    except RpcError as error:
        raise DeploymentError(f"the node refuses the transaction: {error.message}") from error
    await _see_it_mined(rpc, transaction_hash)
    (code,) = await read_codes(rpc.ask, [address])
    if code_hash(code) != batcher_code_hash():
        raise DeploymentError(f"transaction {transaction_hash} did not put the batcher at {address}")
    return BatcherDeployment(address, transaction_hash, is_usual)


def created_address(creator: str, nonce: int) -> str:
    """Return the address of the contract that this account creates with this nonce: lower-case hex."""
    return "0x" + keccak256(rlp_encode([bytes.fromhex(creator[2:]), nonce]))[12:].hex()


async def _look(rpc: Rpc, signer: Signer, policy: DeploymentPolicy) -> tuple[int, Fees]:
    """Return the next nonce and the fees. Raises: DeploymentError, RpcUnavailable."""
    answers = await rpc.ask(
        [
            ("eth_chainId", []),
            ("eth_getTransactionCount", [signer.address, "pending"]),
            ("eth_getBalance", [signer.address, "latest"]),
            ("eth_getBlockByNumber", ["latest", False]),
            *TIP_CALLS,
        ]
    )
    chain_id, nonce, balance, block, *tips = answers
    if quantity(chain_id) != policy.chain_id:
        raise DeploymentError(f"the node's chain id is {quantity(chain_id)}, not {policy.chain_id}")
    base_fee_wei = quantity(block.get("baseFeePerGas", "0x0") if isinstance(block, dict) else None)
    suggested_wei, paid_wei = read_tips(*tips)
    tip_wei = min(bounded_tip(suggested_wei, paid_wei, base_fee_wei), policy.max_fee_per_gas_max)
    if base_fee_wei + tip_wei > policy.max_fee_per_gas_max:
        raise DeploymentError(f"gas costs more than the configured {policy.max_fee_per_gas_max} wei")
    fee_wei = min(2 * base_fee_wei + tip_wei, policy.max_fee_per_gas_max)
    if quantity(balance) < _GAS * fee_wei:  # what a node wants to see there, most of which is not spent
        has = f"has {quantity(balance)} wei and needs {_GAS * fee_wei} for the gas"
        raise DeploymentError(f"{checksum_address(signer.address)} {has}: fund it, or name another key")
    return quantity(nonce), Fees(fee_wei, tip_wei)


async def _see_it_mined(rpc: Rpc, transaction_hash: str) -> None:
    receipt: dict[str, object] | None = None
    try:
        async with asyncio.timeout(_RECEIPT_SECONDS):
            while receipt is None:
                await asyncio.sleep(_POLL_SECONDS)
                (shown,) = await rpc.ask([("eth_getTransactionReceipt", [transaction_hash])])
                receipt = shown if isinstance(shown, dict) else None
    except (TimeoutError, RpcUnavailable) as error:
        msg = f"transaction {transaction_hash} was sent and not seen mined: ask for it later, then run this again"
        raise DeploymentError(msg) from error
    if quantity(receipt.get("status")) != 1:
        raise DeploymentError(f"transaction {transaction_hash} reverted")
