"""Processes that benchmarks start: each prints one line of JSON with its address, and serves until it is stopped."""
