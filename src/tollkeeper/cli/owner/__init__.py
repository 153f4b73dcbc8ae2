"""The owner's commands at a running gateway: log in, manage PayGates, and see what happened.

Promises:

- Whatever the API takes has an option, and whatever it tells is printed, as a table or by `--json`.
- A refusal is the API's own sentence; nothing is decided here.
- A session is kept for one gateway, readable by its owner alone, and sent to no other.
- Nothing that a server says reaches the terminal with control characters in it.

Begin with `paygates`. `at_gateway` is what all share: which gateway, as whom, how lists and refusals are printed;
`gate_fields` names the fields of a PayGate; `accounts` logs in and out; `records` tells what was paid and called.
"""
