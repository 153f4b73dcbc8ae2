"""The ledger: purchases, their credits and the calls that spent them (contract 4.3, 4.5, 10.3; decision 0004).

Promises:
- Every credit is taken in `spends`, but for the first of a grant, which `first_purchase` takes.
- The counter of a purchase and the entries of its calls are one commit, before the first byte goes to a target.
- A race ends in one conditional statement, and a batch does what its spends would do one after the other.

The states of a purchase are `core.purchases.PurchaseState`. A call is DISPATCHED, then DONE, RESTORED or
INTERRUPTED.

The way of a spend and of its answer: `Ledger.spend`, `Ledger._next` (one batch),
`SpendBatch.unit`, `Database.post` (the commit, in the loop or by the writing thread), `Ledger._done`, then the callback
of each spend, which takes its call on (`gateway.call.driver`).

Begin with `ledger` (the data plane's way, in batches), then `spends`. `purchases` has the other verbs: claim, grant,
fail; `purchase_rows` what they take and give. `call_journal` and `open_calls` keep calls, and end those that a dead
process left open. `payer_proofs` spends by a proof. `quarantine` has sales whose payment was taken back, and holds one
that breaks an invariant.
"""
