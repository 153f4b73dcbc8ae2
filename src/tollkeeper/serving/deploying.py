"""`tollkeeper contracts deploy`: the batcher on one of the configured networks (contract 5.2).

The hub's own key is used only while no hub has the database open, and only where the chain has everything that the hub
signed: a nonce taken behind the hub's back would make one of its transactions worthless. Any other key may pay at any
time. What is deployed and how is `hub.deploying`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.chains.rpc import Rpc, RpcUnavailable
from tollkeeper.core.configuration import parse_network
from tollkeeper.core.evm import checksum_address
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.keyring import parse_private_key
from tollkeeper.hub.deploying import DeploymentError, DeploymentPolicy, deploy_batcher
from tollkeeper.hub.signer import Signer
from tollkeeper.serving.composition import open_own_database
from tollkeeper.settings.sources import read_secret_file
from tollkeeper.storage.transactions import next_nonce_of

if TYPE_CHECKING:
    from pathlib import Path

    from tollkeeper.hub.deploying import Deployment
    from tollkeeper.settings import NetworkSettings, Settings


class DeploymentFailed(Exception):  # noqa: N818 - what the command says
    """It was not deployed, or nobody knows; the message says why and what to do."""


async def deploy(settings: Settings, name: str, key_file: Path | None, *, is_plain: bool) -> list[str]:
    """Deploys the batcher; what to tell the operator. `is_plain`: without the deterministic deployer.

    Raises: ValueError for options that cannot be used; DeploymentFailed; StorageError where a hub runs.
    """
    wanted = parse_network(name)
    if not FAMILIES[wanted.family].has_contracts:
        msg = f"{name} needs no contract of ours"
        raise ValueError(msg)
    network = settings.networks.get(wanted.name)
    if network is None or not network.rpc_urls:
        msg = f"no node of {name} is configured"
        raise ValueError(msg)
    try:
        deployment = await _deploy(settings, network, key_file, by_deployer=not is_plain)
    except DeploymentError as error:
        raise DeploymentFailed(str(error)) from error
    except RpcUnavailable as error:
        msg = f"the node cannot be asked: {error}"
        raise DeploymentFailed(msg) from error
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


async def _deploy(
    settings: Settings, network: NetworkSettings, key_file: Path | None, *, by_deployer: bool
) -> Deployment:
    chain_id = network.network.chain_id
    assert chain_id is not None  # noqa: S101 - an EVM network has one
    policy = DeploymentPolicy(chain_id, settings.gas.max_fee_per_gas_wei)
    own = settings.signer_keys
    key = next(iter(own), None) if key_file is None else parse_private_key(read_secret_file(key_file))
    if key is None:
        msg = "this role has no signing key: name one with --key-file"
        raise ValueError(msg)
    signer = Signer(key.reveal())
    is_hubs = signer.address in {Signer(one.reveal()).address for one in own}
    database = open_own_database(settings) if is_hubs else None
    rpc = Rpc(network.rpc_urls)
    try:
        nonce_min = 0 if database is None else await next_nonce_of(database, network.network.name, signer.address)
        return await deploy_batcher(rpc, signer, policy, nonce_min=nonce_min, by_deployer=by_deployer)
    finally:
        await rpc.close()
        if database is not None:
            await database.close()
