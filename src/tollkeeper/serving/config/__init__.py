"""`tollkeeper init` and `tollkeeper config check`.

Promises:
- `init` writes a configuration that starts as it stands, keys that only their owner reads, and overwrites nothing.
- `config check` shows what is effective, what is wrong and what is unwise, in one report; it changes nothing.
- No output shows a secret: of keys it tells ids and addresses, of a node's URL the origin.
- What was not looked at is said, so that silence is not taken for health.

Begin with `check`; `network_check`, `file_stores` and `exposure` are what it asks in turn. `init`
fills in the file `configuration.template`.
"""
