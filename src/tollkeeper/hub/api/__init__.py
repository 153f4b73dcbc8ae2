"""The hub's endpoints: what they are asked and what they answer."""
