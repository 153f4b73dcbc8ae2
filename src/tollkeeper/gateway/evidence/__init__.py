"""Evidence on the chain of a payment at a facilitator that is not ours (contract 4.3, 4.4).

Promises:
- The answer is paid, failed or unknown, and unknown is never taken for one of the others.
- Paid and failed each need what cannot be undone: on EVM the token's own record of a used authorization and its log, on
  Solana the very message, executed.
- A node is believed as far as the settings say; where several are to agree, one that is alone proves nothing.

Begin with `port`: the question and its answers. `evm` and `solana` ask one network's nodes, `nodes`
holds them all and says when a facilitator's own answer is enough. `token_accounts` tells who is paid by an
account on Solana.
"""
