"""The listener's connections to callers (contract 4.2; security A-40, A-58).

Promises:
- What is ambiguous is refused with an answer, seen by nobody, and its connection ends.
- Answers leave in the order of their requests, PayGates' calls and the API's requests on one connection.
- A caller who is too slow is given up, and whether one left is asked without harm to one who only sends no more.

A connection is idle, reading a head, reading a body, answering, or ending (`caller_connection`, `timeouts`).

Begin with `protocol`, then `call`: one request that is answered without ASGI. Around them:

- what comes in: `edge.shared.whole_messages` for one plain head, else `request_pieces` and `malformed`; `crowds`
  where a tenant has its share;
- who is there still: `client_liveness`, `timeouts`;
- what goes out: `joined_writes`, `delayed_close`;
- what connections of one listener share: `listener`, of which `protocol_class` makes their class.
"""
