"""A page about finished runs: figures, tables, comparisons."""
