"""POST /api/v1/transfer: a transfer behind the 402 that asks for that very transfer (specification 4.1; contract 8).

`request` reads what a body describes, `service` has it carried out, `foreign` by a facilitator that is no hub of ours.
"""
