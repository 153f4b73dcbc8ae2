"""The gateway: PayGates, and the paid calls through them (specification 1 to 3; contract 3, 4, 8).

Promises:
- A credit is taken in a durable commit before the first byte goes to the target (`call`).
- A payment buys once; while nobody knows whether it settled, nobody is asked to pay again for it (`purchase`).
- Any facilitator will do, ours or another (`facilitator`), and another's word is checked on the chain (`evidence`).

A gate is enabled or not, then deleted. The states of a purchase are `core.purchases.PurchaseState`.

Begin with `call.flow`, the paid call from top to bottom; then `call.credit` and `purchase.service`. `app` puts the
parts together and says how they start and stop. Around the call:

- `open_gate`: the gate that a call is about, with its 402 made once;
- `limiting` and `traffic`: what is counted against a caller, and for an owner;
- `files`, `credits` and `transfers`: downloads, the look at held credits, the transfer without a gate;
- `management`: what owners change and read; `encryption_keys`: what seals, and what makes credit tokens and links.
"""
