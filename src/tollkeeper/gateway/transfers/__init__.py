"""POST /api/v1/transfer: a transfer behind the 402 that asks for that very transfer (specification 4.1; contract 8).

Promises:
- Nobody pays twice: of the body's payment and the header's one is carried out, and sent again it tells its outcome.
- Nothing is stored here. What became of a transfer the hub knows by its key, or else the chain.

A transfer has the states of its settlement (`core.settlement.states`): pending, then success or failed.

Begin with `service`, from the request to the answer: what a body describes, its 402, and the transfer at our hub or at
a facilitator that is none.
"""
