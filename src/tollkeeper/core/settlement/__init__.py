"""A settlement as a value: its states, what proves its end, and the books beside the chain.

Promises:
- A state is left only by a transition of `states`' table. A reorganisation of the chain can take back even an end.
- A transaction that is not seen has not failed: a failure needs a proof (`states`) that no block can hold it any more.
- The books are compared with the chain in both directions (`reconciliation`), and each difference says what to do.

States: CLAIMED, SIGNED, BROADCAST, MINED, then CONFIRMED or FAILED; `states` says what each means.

Begin with `states`. `history_csv` is the history as a table.
"""
