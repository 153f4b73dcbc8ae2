"""Purchases: claimed, settled, granted, and watched while a payment can be taken back (contract 4.3, 4.4, 10.3).

Promises:
- A payment is claimed at most once, at one gate, whoever shows it and in however many processes.
- An attempt is the payment's and not the request's: it goes on although its buyer leaves, and recovery finishes it.
- FAILED is said by proof alone. What nobody can tell is PARKED, and the operator decides.

The states are `core.purchases.PurchaseState`; docs/architecture.md 3 has their table.

Begin with `service`: an attempt from its terms to its grant, and who waits for which. `decisions` says what an answer
of the facilitator decides, and what a buyer is told meanwhile. Then:

- after a crash or a lost answer: `recovery`; after the grant: `monitor`; by the operator's hand: `manual_grant`;
- instead of a settlement: `payer_proofs`;
- what a buyer is refused with: `refusals`;
- what a wallet is to sign: `unsigned_payments`.
"""
