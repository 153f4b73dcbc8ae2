"""Pure rules: values in, values or ApiError out; no clock, randomness, environment, socket, SQL or framework."""
