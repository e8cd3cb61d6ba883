"""Finished cells: their store, predictions, identity, summaries and tables."""
