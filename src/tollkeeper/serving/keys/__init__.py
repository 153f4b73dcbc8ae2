"""Key files, their rotation, and the keys of trusted gateways."""
