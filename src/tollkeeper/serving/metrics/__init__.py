"""The process's numbers and the address that tells them."""
