"""Bytes of EVM chains: what is signed, sent and read back.

Promises:
- Everything that is hashed, signed or recovered is done in `encoding`, with no other library's idea of a transaction.
- A signature counts in one form only, so that a payment has one identity.
- Evidence about a payment is read from the logs of a transaction (`receipt_logs`), never from its success alone.

Begin with `encoding`. `batches` puts several payments into one transaction, `counterfactual` those of
wallets that are not deployed yet; `signed_transactions` says what a transaction may pay, and reads one back. How a
node is asked is in `chains.evm`.
"""
