"""A page about finished runs: tables, figures, paired comparisons."""
