"""Tollkeeper: a payment-gated API gateway and a payment hub for the x402 protocol."""

__version__ = "0.1.0"
