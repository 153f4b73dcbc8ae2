"""One call of a PayGate, from its head to its answer. `flow` is where to begin reading."""
