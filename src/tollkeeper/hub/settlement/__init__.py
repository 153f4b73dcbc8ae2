"""Settling, on any chain: one flow and one recovery over the verbs of a family (contract 5.2; security F1-F9).

It promises that of all callers with one payment one settles it and one is given the success, across processes and
crashes; that nothing is sent before it is on the disk; and that whoever asks again is told the same.

A row goes CLAIMED, SIGNED, BROADCAST, MINED, CONFIRMED, and FAILED by proof (`core.settlement.states`). A request
carries its row until its time is up; a row that no request carries is recovery's.

Begin with `flow`; then `family` (the port), `pipeline` (from a sent transaction to a recorded outcome) and `recovery`
(the loop that finishes what nobody carries). `orders` and `requests` are the values between them,
`outcomes` what was told before, `concurrent_payers` what is under way of one payer. No file here knows a chain.
"""
