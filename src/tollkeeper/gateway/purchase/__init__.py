"""Purchases: claimed, paid, granted, watched. `service` is where to begin reading."""
