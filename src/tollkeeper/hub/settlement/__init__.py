"""A settlement, from its order to its outcome. `flow` is where to begin reading."""
