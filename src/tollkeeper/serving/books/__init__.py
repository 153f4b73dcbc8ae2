"""The books checked against their invariants and the chain."""
