"""`tollkeeper contracts deploy`: the batcher on one of the configured networks (contract 5.2).

A key of its own pays, and never one of the hub's (security A-24): what those sign stays bounded by the signer's policy,
and a nonce taken behind the hub's back would make one of its transactions worthless. What is deployed and how is
`hub.evm.deployment`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.rpc import Rpc
from tollkeeper.core.configuration import parse_network
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.keys.keyring import parse_private_key
from tollkeeper.hub.evm.deployment import DeploymentError, DeploymentPolicy, deploy_batcher
from tollkeeper.hub.evm.signer import Signer
from tollkeeper.settings.sources import read_secret_file

if TYPE_CHECKING:
    from pathlib import Path

    from tollkeeper.hub.evm.deployment import BatcherDeployment
    from tollkeeper.settings.model import NetworkSettings, Settings


class DeploymentFailed(Exception):  # noqa: N818 - what the command says
    """It was not deployed, or nobody knows; the message says why and what to do."""


async def deploy(settings: Settings, name: str, key_file: Path | None, *, is_plain: bool) -> list[str]:
    """Deploys the batcher; what to tell the operator. `is_plain`: without the deterministic deployer.

    Raises: ValueError for options that cannot be used; DeploymentFailed.
    """
    wanted = parse_network(name)
    if not FAMILIES[wanted.family].has_contracts:
        raise ValueError(f"{name} needs no contract of ours")
    network = settings.networks.get(wanted.name)
    if network is None or not network.rpc_urls:
        raise ValueError(f"no node of {name} is configured")
    signer = _payer(settings, key_file)
    try:
        deployment = await _deploy(settings, network, signer, by_deployer=not is_plain)
    except DeploymentError as error:
        raise DeploymentFailed(str(error)) from error
    except RpcUnavailable as error:
        raise DeploymentFailed(f"the node cannot be asked: {error}") from error
    address = checksum_address(deployment.address)
    is_new = bool(deployment.transaction)
    lines = [f"the batcher is at {address} on {network.network.name}" + ("" if is_new else " already")]
    if is_new:
        lines.append(f"transaction {deployment.transaction}")
    if deployment.is_usual:
        lines.append("a hub finds it there by itself")
    else:
        lines.append(f'write it into [networks.{network.network.name}]: batcher = "{address}"')
    return lines


def _payer(settings: Settings, key_file: Path | None) -> Signer:
    """Return the signer that pays. Raises: ValueError if none is named, or if it is one of the hub's."""
    if key_file is None:
        msg = (
            "name a key of its own with --key-file, whose account has gas money; `openssl rand -hex 32` makes one, and "
            "nobody else may be able to read the file (chmod 600)"
        )
        raise ValueError(msg)
    signer = Signer(parse_private_key(read_secret_file(key_file)).reveal())
    if signer.address in {Signer(one.reveal()).address for one in settings.signer_keys}:
        msg = f"--key-file: {signer.address} settles payments for this hub and deploys nothing: use another key"
        raise ValueError(msg)
    return signer


async def _deploy(
    settings: Settings, network: NetworkSettings, signer: Signer, *, by_deployer: bool
) -> BatcherDeployment:
    chain_id = network.network.chain_id
    assert chain_id is not None  # noqa: S101 - an EVM network has one
    rpc = Rpc(network.rpc_urls)
    try:
        policy = DeploymentPolicy(chain_id, settings.gas.max_fee_per_gas_wei)
        return await deploy_batcher(rpc, signer, policy, by_deployer=by_deployer)
    finally:
        await rpc.close()
