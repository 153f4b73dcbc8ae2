"""The gateway's facilitator: what it settles, and how it is asked.

Promises:
- The facilitator is our hub or any other of x402: nothing is asked that its `/supported` does not promise.
- A request has one key for ever, so that asking again settles nothing twice.
- An answer that did not come, or cannot be read, is unknown; only an answer says success or failure.

`serve` asks its hub within the process, a gateway apart asks over HTTP; the requests are the same.

Begin with `client`: supported, verify, settle, status. `kinds` reads what can be sold for, `transports` has the two
ways.
"""
