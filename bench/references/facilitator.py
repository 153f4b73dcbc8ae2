"""The official Python facilitator (PyPI x402 2.25.0) as its documentation serves it: what our hub is measured against.

Run by the interpreter of .cache/interop/x402-2.25.0, with the environment
  FACILITATOR_RPC_URL       the chain's node
  FACILITATOR_PRIVATE_KEY   a key with gas on that chain
  FACILITATOR_NETWORK       CAIP-2 name (default eip155:84532); the v1 names are always registered as well
It listens on a free port of the loopback address and prints {"url": ...} as one line when it is ready.
Nothing is tuned for or against it: default signer, default checks, uvicorn with its fast parts, no access log.
"""

from __future__ import annotations

import os

from facilitating import create_app
from serving import serve
from x402 import x402Facilitator
from x402.mechanisms.evm import FacilitatorWeb3Signer
from x402.mechanisms.evm.exact import register_exact_evm_facilitator


def facilitator() -> x402Facilitator:
    """On the networks of the environment."""
    made = x402Facilitator()
    signer = FacilitatorWeb3Signer(
        private_key=os.environ["FACILITATOR_PRIVATE_KEY"],
        rpc_url=os.environ["FACILITATOR_RPC_URL"],
    )
    network = os.environ.get("FACILITATOR_NETWORK", "eip155:84532")
    register_exact_evm_facilitator(made, signer, networks=network)
    return made


if __name__ == "__main__":
    serve(create_app(facilitator()))
