"""Evidence on the chain of a payment at a facilitator that is not ours (contract 4.3, 4.4).

`port` has the question and its answers, `evm` and `solana` ask one network's nodes, `nodes` holds them all and says
when a facilitator's own answer is enough. `token_accounts` tells who is paid by an account on Solana.
"""
