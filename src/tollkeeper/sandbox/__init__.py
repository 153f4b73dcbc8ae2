"""Embedded chain, test token, test wallets, demo target and demo."""
