"""Clients of owners and buyers, on their own machines: ordinary HTTP requests to a running gateway."""
