"""Settling on Solana: messages of a payer, co-signed by the hub's fee payers (contract 5.1, 5.2; A-26 to A-32).

It promises that a fee payer signs only a transaction that keeps every rule of `core.solana`, and that one which is not
seen is FAILED only by proof: it was executed with an error, or its blockhash is too old and no block holds it.

Begin with `family`, whose verbs stand in the order of a settlement, as in `hub.evm.family`. Files of the same name do
the same for both: `account` (what the endpoints ask), `signer` (the fee payers), `signing` (claim, co-sign, store),
`findings` (what became of it), `watch` (what recovery looks after). What was confirmed is
told, and watched until it is final. There are no nonces, no batches and no replacements.
"""
