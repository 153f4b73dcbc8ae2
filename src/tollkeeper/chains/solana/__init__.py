"""One Solana network behind its nodes (specification 2.3, 2.4, 4.4; security A-15).

It promises that a transaction is called expired only by nodes that have every block which could hold it, and that our
signature of one is shown to no node before the node has named it.

Begin with `chain`, as `chains.evm.chain`: `open` enables a network or says in `problem` why not. `reader` has the facts
of one node. `expiry_proof` proves that a transaction can be executed no longer, with `history` (whether a node lacks
blocks). `payment_lookup` says which transaction carried a payment out, `payments` which payments a range
of slots holds, `blockhashes` how long one is taken still, `answers` reads what nodes say.
"""
