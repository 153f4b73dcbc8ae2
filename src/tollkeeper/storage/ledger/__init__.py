"""Purchases, credits and calls: the ledger of what buyers hold."""
