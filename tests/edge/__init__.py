"""The data plane on real sockets: hostile targets, hostile callers, raw bytes."""
