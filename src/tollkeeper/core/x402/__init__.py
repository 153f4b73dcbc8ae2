"""x402's wire, version by version, and the rules of a payment."""
