"""Keys, sealed values, logins and tokens, as values.

Promises:
- A secret does not show itself: neither its text nor an error's has it (`keyring.Secret`).
- A sealed value opens only at its place: table, row and column are bound into it (`sealing`).
- A key ring signs or seals with its first key and opens with all of them, so that a key is replaced by a restart.
- A login message is good once, for five minutes, for the place that it names (`siwe`).

Begin with `keyring`. `tokens` has access and refresh tokens, `handover` lets a browser log a program in, `wallet_keys`
signs as an owner's tools do. Who issues and judges is `auth`.
"""
