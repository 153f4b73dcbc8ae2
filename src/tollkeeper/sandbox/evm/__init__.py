"""The embedded EVM chain: a small Ethereum-like node without a network.

Promises:
- A transaction is judged as a real node does: nonce, fees, balance, gas and signature, with the same refusals.
- A block is mined when something is sent, or at fixed intervals; a checkpoint of the chain can be gone back to.
- The test token is at base-sepolia's canonical USDC address and has its code, so that signatures are the real ones.

Two engines execute: revm where it has a wheel (`revm`), py-evm elsewhere (`pyevm`), behind one interface (`engine`).

Begin with `chain` and its pool; `blocks` is what was mined, `rpc` what can be asked, `node` the listener
and the first state.
"""
