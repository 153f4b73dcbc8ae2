"""A PayGate as a value: its fields, its 402, its files, its targets' signatures.

Promises:
- A field is read, checked and given its default at one place (`fields`), whether JSON or a form sends it.
- An update is all or nothing, and makes a new version; what was sold before keeps its terms.
- The 402 is the same for every client of a gate and version: one body that clients of both x402 versions can pay.
- A location in a target's answer never shows a caller where the target is (`locations`), and no caller overrides
  what the owner wrote into the target's query (`model.without`).

Begin with `fields`, then `model`. `challenge` makes the 402, `downloads` a file's links, `target_signing` what a
target may check, `statistics` what the owner is told.
"""
