"""Key files, and the keys of gateways that a hub trusts.

Promises:
- A key file is rewritten whole: at every moment it is there as it was or as it is to be (`files`).
- A former key opens what it once sealed for as long as it is in its ring; `tollkeeper keys` says how much that is.
- A trusted gateway's keys come from its own JWKS, by its URL, and are asked for again before they are too old
  (`trusted_gateways`).

A key is in use, then former, then gone once nothing is sealed under it.

Begin with `files`. What a running gateway seals with is `gateway.encryption_keys`. The rotation of a key is an
operator's command, in `serving.admin.rotation`.
"""
