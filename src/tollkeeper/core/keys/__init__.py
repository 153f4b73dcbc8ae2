"""Keys, sealing, logins and tokens as values."""
