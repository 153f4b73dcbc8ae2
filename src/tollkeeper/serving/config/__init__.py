"""`tollkeeper init` and `tollkeeper config check`."""
