"""x402's wire, version by version."""
