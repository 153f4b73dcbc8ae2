"""Rows of the hub: settlements, the transactions signed for them, keys and bounds (contract 5.2, 7).

Promises:
- Claim, nonce, gas and raw transaction are one commit, on the disk before anything is sent (`claims`).
- A settlement moves by one conditional statement, with its event in the same commit (`settlements`).
- Who lost a lease to another process writes nothing any more (`leases`).

The states of a settlement are `core.settlement.states.State`. A slot, (network, signer, nonce), is open until one of
its transactions is mined (`transactions`).

Begin with `claims`, then `settlements`. `payers` says how much may be under way and
spent, `idempotency` keeps what a caller's key was answered. What any of it means is
decided in `hub`.
"""
