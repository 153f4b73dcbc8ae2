"""Pure rules of gateway and hub: values in, values or a refusal (`ApiError`) out.

Promises:
- No clock, randomness, environment, socket, SQL or framework is known here; import-linter holds it. Whoever calls
  passes the time and what was read.
- Money is an integer of micro-units; a float is nowhere.
- A rule that the contract numbers names its number where it is written.

States: `purchases` has those of a purchase, `settlement.states` those of a settlement, each with its transitions.

Begin with `purchases` for a paid call, `x402.verification` for a payment, `paygates.fields` for a PayGate. What
differs from one family of networks to another stands in a row of `families`; the rest is in `evm` and `solana`.

- a payment: `payment_offers` (as it was shown, and what it pays), `purchases`;
- what a payment names: `networks`, `wallets`, `usdc`;
- what is bounded: `limits`, `trust`, and `shares` between tenants;
- what goes in and out: `http` (heads), `api` (errors and JSON), `keys` (seals, logins, tokens).
"""
