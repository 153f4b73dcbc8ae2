"""One call of a PayGate, from its head to its answer (contract 4.1 to 4.7).

Promises:
- The checks come in contract 4.2's order, and what is refused before the spend costs nothing.
- What is committed is charged, and the call says so: `credit` waits for the ledger although the client leaves.
- Every way in which a call ends has one row in a table (`credit.FATES`), also a stop and a client that left.

A call's credit is NONE, UNKNOWN, TAKEN or CLOSED (`credit.CreditState`). A call itself is cut at most once (`driver`):
the listener tells that its client left (`InboundCall.on_gone`), `handler` that the process stops.

Begin with `flow`: `serve` is the way, `_end` is every other end. Then `credit`. `state` is what both know of the call.

- before the spend: `handler` (which requests are calls, the 402 of a plain one), `request_facts`,
  `payment_header`, and `credit_refusals`;
- behind it: `forwarding` and `stream`, with `target_signature`;
- what goes out: `responder`, with the lines of `headers`.
"""
