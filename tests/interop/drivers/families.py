"""A client of PyPI x402 2.25.0 for one chain family; each environment has the part of the package for one of them."""
# ruff: noqa: PLC0415 - what is imported is there for one family alone

from __future__ import annotations

from typing import Any

from x402 import x402Client


def client_of(request: dict[str, Any]) -> x402Client:
    """Who pays with `privateKey`: on Solana by the node at `rpcUrl` where there is one, else on EVM networks."""
    client = x402Client()
    if "rpcUrl" in request:
        from x402.mechanisms.svm import KeypairSigner
        from x402.mechanisms.svm.exact import register_exact_svm_client

        signer = KeypairSigner.from_base58(request["privateKey"])
        return register_exact_svm_client(client, signer, rpc_url=request["rpcUrl"])
    from eth_account import Account
    from x402.mechanisms.evm import EthAccountSigner
    from x402.mechanisms.evm.exact import register_exact_evm_client

    return register_exact_evm_client(client, EthAccountSigner(Account.from_key(request["privateKey"])))
