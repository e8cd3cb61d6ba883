"""Cells, the append-only results store, summaries, and what a result is (versions, hashes)."""
