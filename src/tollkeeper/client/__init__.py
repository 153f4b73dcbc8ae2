"""What owners and buyers do from their own machines: ordinary HTTP requests to a running gateway."""
