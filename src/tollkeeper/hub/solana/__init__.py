"""Settling on Solana: what differs there from `hub` otherwise (contract 5.1, 5.2; security A-26 to A-32, F8).

`account` is what the endpoints ask of a network, `fee_payers` hold the keys, `settlement` signs, recovers and
completes, `finality` watches what was told until it is final. `hub.settlement.family` names them; nothing else does.
"""
