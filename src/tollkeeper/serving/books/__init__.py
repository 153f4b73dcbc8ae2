"""The books checked against their invariants and against the chain.

Promises:
- A check reads one state of the database and changes nothing in it.
- Each difference names what two things must agree and do not.
- The chain is compared in both directions: what the books call paid is there, and what is there to us is in the books.

`tollkeeper db check` runs both; a serving process runs each about once a minute, and tells what it finds as metrics
and log lines.

Begin with `inspection`, then `reconciliation`.
"""
