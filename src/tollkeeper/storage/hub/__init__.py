"""Rows of the hub: settlements, transactions, keys and limits."""
