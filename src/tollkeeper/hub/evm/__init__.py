"""Settling on EVM chains: authorizations of EIP-3009, carried out by the hub's own signers (contract 5.2; A-24, A-25).

It promises that a signer's nonces have no gap and never stand still, and that a payment whose transaction is not seen
is FAILED only once no transaction of ours can carry it out any more.

Begin with `family`, whose verbs stand in the order of a settlement, as in `hub.solana.family`. Files of the same name
do the same for both: `account` (what the endpoints ask), `signer` (the keys), `signing` (claim, sign, store),
`findings` (what became of it), `watch` (what recovery looks after). Of this family alone are

- batches: `batch` gathers and makes the call;
- nonces: `nonce_lanes` fills, replaces and sends again;
- the `deployment` of our batcher.
"""
