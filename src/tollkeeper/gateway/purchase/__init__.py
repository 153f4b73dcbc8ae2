"""Purchases: claimed, settled, granted, and watched while a payment can be taken back (contract 4.3, 4.4, 10.3).

Promises:
- A payment is claimed at most once, at one gate, whoever shows it and in however many processes.
- An attempt is the payment's and not the request's: it goes on although its buyer leaves, and recovery finishes it.
- FAILED is said by proof alone. What nobody can tell is PARKED, and the operator decides.

The states are `core.purchases.PurchaseState`; docs/architecture.md 3 has their table. A first purchase is four commits,
on either family; a crash before the first leaves nothing, and behind each one somebody goes on from its row:

1. the claim, with the settle request (`storage.ledger.first_purchase`): `recovery` sends the same request again;
2. at our hub, its claim with the signed transaction (`hub.evm.signing`, `hub.solana.signing`), which is sent then;
3. at our hub, the outcome (`hub.settlement.pipeline`): until it is there `hub.settlement.recovery` looks for it;
4. grant and first spend (`storage.ledger.first_purchase`).

Begin with `service`: an attempt from its terms to its grant, and who waits for which. `decisions` says what an answer
of the facilitator decides, and what a buyer is told meanwhile. Then:

- after a crash or a lost answer: `recovery`; after the grant: `monitor`; by the operator's hand: `manual_grant`;
- instead of a settlement: `payer_proofs`;
- what a buyer is refused with: `refusals`;
- what a wallet is to sign: `unsigned_payments`.
"""
