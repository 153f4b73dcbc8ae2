"""The invariants of the books."""
