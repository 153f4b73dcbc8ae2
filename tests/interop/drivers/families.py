"""A client of PyPI x402 2.25.0 for one chain family; each environment has the part of the package for one of them."""
# ruff: noqa: PLC0415 - what is imported is there for one family alone

from __future__ import annotations

from typing import Any

from x402 import x402Client


def client_of(request: dict[str, Any], kind: Any = x402Client) -> Any:
    """Who pays with `privateKey`: on Solana by the node at `rpcUrl` where there is one, else on EVM networks.

    In both versions of x402, or in version 2 alone where `versions` is "2".
    """
    client = kind()
    is_version_2 = request.get("versions") == "2"
    if "rpcUrl" in request:
        from x402.mechanisms.svm import KeypairSigner
        from x402.mechanisms.svm.exact import ExactSvmClientScheme, register_exact_svm_client

        signer = KeypairSigner.from_base58(request["privateKey"])
        if is_version_2:
            return client.register("solana:*", ExactSvmClientScheme(signer, rpc_url=request["rpcUrl"]))
        return register_exact_svm_client(client, signer, rpc_url=request["rpcUrl"])
    from eth_account import Account
    from x402.mechanisms.evm import EthAccountSigner
    from x402.mechanisms.evm.exact import ExactEvmClientScheme, register_exact_evm_client

    payer = EthAccountSigner(Account.from_key(request["privateKey"]))
    if is_version_2:
        return client.register("eip155:*", ExactEvmClientScheme(payer))
    return register_exact_evm_client(client, payer)
