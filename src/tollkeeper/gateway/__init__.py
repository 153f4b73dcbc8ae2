"""The gateway: PayGates and the paid calls through them, as an ASGI application."""
