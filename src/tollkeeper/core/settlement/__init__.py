"""Settlements as values: states, proof, history and the comparison with the chain."""
