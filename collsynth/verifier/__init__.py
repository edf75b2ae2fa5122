"""The only prover."""
