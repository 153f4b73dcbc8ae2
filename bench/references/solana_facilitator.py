"""The same facilitator with its Solana mechanism: what our hub is measured against there.

Run by the interpreter of .cache/interop/x402-2.25.0-svm, with the environment
  FACILITATOR_RPC_URL       the chain's node
  FACILITATOR_PRIVATE_KEY   the fee payer's seed and public key, in base58
Nothing is tuned for or against it, as in facilitator.py.
"""

from __future__ import annotations

import os

from facilitating import create_app
from serving import serve
from x402 import x402Facilitator
from x402.mechanisms.svm import SOLANA_DEVNET_CAIP2, FacilitatorKeypairSigner
from x402.mechanisms.svm.exact import register_exact_svm_facilitator


def facilitator() -> x402Facilitator:
    """On Solana's devnet."""
    made = x402Facilitator()
    signer = FacilitatorKeypairSigner.from_base58(
        os.environ["FACILITATOR_PRIVATE_KEY"], rpc_url=os.environ["FACILITATOR_RPC_URL"]
    )
    register_exact_svm_facilitator(made, signer, networks=SOLANA_DEVNET_CAIP2)
    return made


if __name__ == "__main__":
    serve(create_app(facilitator()))
