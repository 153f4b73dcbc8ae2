"""Solana's rules, all of them: what a payment there is, and which one our fee payer may sign (specification 2.3, 4.4).

Promises:
- The fee payer signs what `rules` allows and nothing else: fixed programs in a fixed order, capped fees, no account of
  ours but as payer of the fee.
- A payment's identity is its message, so that a signature made anew makes no second payment.
- A signature holds here exactly where validators say so (`ed25519`).

Read `rules` first: which transaction keeps them, rule by rule. `message` says what bytes
a transaction is, `programs` what the programs do that one may call and which address is no wallet's, `paying`
how a buyer makes one. How a node is asked is in `chains.solana`; how keys are written, in `core.solana.base58`.
"""
