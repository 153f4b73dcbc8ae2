"""One EVM network behind its nodes."""
