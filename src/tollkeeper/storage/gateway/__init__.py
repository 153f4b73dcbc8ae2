"""Rows of the gateway beside the ledger."""
