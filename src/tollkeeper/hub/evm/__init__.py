"""The parts that settling on EVM networks needs beside the flow: batches, nonces, signers."""
