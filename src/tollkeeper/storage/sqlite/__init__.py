"""The embedded engine: one file with one writing connection."""
