"""The embedded EVM chain."""
