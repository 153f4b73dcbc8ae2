"""Everything to try and test with, on this machine only: chains, tokens, wallets, a target, a demo.

Promises:
- Nothing here has real money: keys are derived from a public seed, and the chains are in this process.
- The sandbox's gateway and hub are the product's own, composed as `serve` composes them; only the chains are played.
- An embedded chain answers as a real node does, including its refusals, as far as our program and official clients
  ask.
- Nothing that serves imports this package.

Begin with `stack`, which starts all of it; `running` is the command. `wallets` has the players, `buyer` pays as a
client does, `target` is what is sold; `evm` and `solana` are the chains, `demo` tells a whole purchase.
"""
