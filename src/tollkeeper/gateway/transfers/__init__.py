"""POST /api/v1/transfer: a transfer behind the 402 that asks for that very transfer (specification 4.1; contract 8).

Promises:
- Nobody pays twice: of the body's payment and the header's one is carried out, and sent again it tells its outcome.
- Nothing is stored here. What became of a transfer the hub knows by its key, or else the chain.

A transfer has the states of its settlement (`core.settlement.states`): pending, then success or failed.

Begin with `service`, from the request to the answer. `request` reads what a body describes and makes its 402; `foreign`
has it carried out by a facilitator that is no hub of ours.
"""
