"""The management of PayGates: `/api/v1/paygates`, its statistics and its lists.

Promises:
- Whoever changes a gate may do so (`ownership`): its owner by bearer, or the bearer of a gate's own token. The right is
  checked again where the change commits.
- A change is all or nothing; what is wrong is refused before anything is asked of the network.
- A create that is sent again under its key gives the same answer and makes no second gate (`idempotency`).
- A secret is shown once; a header for the target never again.

States of a gate: enabled or not, then deleted for ever, whose slug is never used again.

Begin with `paygates`. `operations` is the table of its endpoints, `bodies` what they take and answer, `uploads` a
file's way to its store, `target_probe` the look at a target. Owners read `statistics` and `owner_lists`.
"""
