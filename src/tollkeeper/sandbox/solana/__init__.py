"""The embedded Solana chain: LiteSVM with slots, blockhashes and a history.

Promises:
- A transaction is executed by the real runtime, with the real token programs; what fails there fails here.
- Slots pass by a clock, blockhashes run out as they do on the chain, and what was executed can be searched.
- The methods are those that the official x402 stacks, solana-py and @solana/kit call; another one is refused by name.

It runs in one event loop with the rest of the sandbox.

Begin with `chain`, then `rpc`; `node` is both behind one port, with the WebSocket.
"""
