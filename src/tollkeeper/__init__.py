"""Tollkeeper: a payment-gated API gateway and a payment hub for the x402 protocol.

It promises three things, whatever dies meanwhile (docs/architecture.md 1): a credit is durable before its call is
forwarded, an unknown outcome is pending, and the database decides every race.

Begin with docs/architecture.md, then by what you look for:

- a paid call: `gateway.call.flow`; its payment: `gateway.purchase.service`; its settlement: `hub.settlement.flow`;
- a rule: `core`, where nothing waits and nothing is read; a row: `storage`;
- a node of a chain: `chains`; a socket: `edge`; a login: `auth`; a page: `web`;
- a process and its parts: `serving.run`, `serving.composition`; a command: `cli`; a setting: `settings`.

Packages import downwards only: `cli`, then `sandbox`, `client` and `serving`, `web`, `gateway` and `hub`, `auth` and
`edge`, `chains` and `storage`, and `core` below all.
"""

__version__ = "0.1.0"
