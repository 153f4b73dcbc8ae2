"""The way to targets: addresses, connections, forwarding."""
