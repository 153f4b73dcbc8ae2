"""Chains behind their nodes: facts of a payment, sending, waiting (specification 2.3, 2.4, 4.4; security A-15).

It promises that an answer which cannot be read counts as no answer, that a node of another chain is never asked, and
that what becomes of a payment is told once enough nodes show the same of it. It concludes nothing about settlements.

Begin with `evm.chain` or `solana.chain`: both open a network, simulate, submit, look and wait by the same names. Below
them, in both packages, `reader` has the facts of one node. What both families share is here:

- `rpc`, `replies`, `connections`, `quota` and `nodes`: one question to one of several nodes;
- `chain`: opening a network and handing transactions over, as far as both families do it alike;
- `quorum`: one wrapper around a reader of one node, and the only place that knows how many nodes must agree;
- `sightings`, `watcher`: transactions as they are seen, waiting for them, and sending again what nobody shows.
"""
