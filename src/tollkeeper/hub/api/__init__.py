"""The hub's HTTP: requests in, values of `hub.settlement.requests` out, and answers back (contract 5.1, 7, 10.2).

It promises to refuse what cannot be read with a 400 before any node is asked, and to answer a refused payment as every
client of x402 expects: with status 200 and a reason. It decides nothing about a settlement.

Begin with `facilitator`, the endpoints of the protocol; `transfer` and `standing` are two more on the same path. Whose
request it is, says `gateway_signature`. `withdrawal` is
version 2's promise that a server is told an outcome or a transaction. `operations` describes all of it for OpenAPI, and
`history` lists what was settled.
"""
