"""The process that serves: its limits, its listener, its end."""
