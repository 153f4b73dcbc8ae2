"""The payment hub: verifies and settles payments of x402, and pays the fees (specification 4.4; contract 5).

It promises that a payment is settled once, that its success is handed out once, and that FAILED is said by proof alone:
what nobody knows is pending. Everything that decides is in the database, so a hub may be killed at any moment.

A settlement's states are `core.settlement.states.State`, and its table of transitions stands there. A network is
disabled while its nodes do not answer or are another chain's, and open otherwise.

Begin with `settlement.flow`, which settles one order; then read the port of a chain, `settlement.family`, and one
implementation of it, `evm.family` or `solana.family`. Around them:

- `app` puts the parts together, and `families` is the one table that knows both families;
- `api` reads HTTP and writes answers;
- `admission` and `signer_pool` bound what settling may cost;
- `membership` says what this process may do alone, where several share the database.
"""
