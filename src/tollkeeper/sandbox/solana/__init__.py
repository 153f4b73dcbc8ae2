"""The embedded Solana chain."""
