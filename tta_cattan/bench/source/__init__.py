"""The model and the subspace of the source domain, computed once and cached."""
