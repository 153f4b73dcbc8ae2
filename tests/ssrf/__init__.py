"""Targets that would lead inside, against a gateway in a network namespace of its own (security A-41)."""
