"""Where the contents of file PayGates lie."""
