"""`tollkeeper demo`: whole purchases, told step by step and checked at each.

Promises:
- Every step checks what it tells; the first check that fails ends the demo by its name, with a status that is not 0.
- The buyers of the last steps are official clients, unmodified, of both generations of x402.
- Balances are read from the chain before and after, so that what is told of money is what moved.

The order is the story's: sell, be asked to pay, pay, use the credits, see the history, on EVM and then on Solana.

Begin with `evm`, then `solana`. `story` is what they share, and numbers and checks the steps;
`official_client` runs the official clients.
"""
