"""Benchmarks: each measures ours beside its reference in one run. `make bench` runs all, `make bench NAME=x` one."""
