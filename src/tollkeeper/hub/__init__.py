"""The hub: an x402 facilitator with wallet login and history, as an ASGI application."""
