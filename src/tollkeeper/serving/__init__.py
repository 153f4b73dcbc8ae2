"""Running the parts: what a process is made of, its listeners, its orderly end (contract 1)."""
