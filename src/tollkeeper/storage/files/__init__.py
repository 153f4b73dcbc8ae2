"""Stores of the contents of file PayGates."""
