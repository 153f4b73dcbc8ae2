"""PayGates: what one is, how its fields are read, where it points and what its target may check."""
