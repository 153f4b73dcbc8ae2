"""EVM bytes: encodings, signatures, batches and what the logs of a transaction say."""
