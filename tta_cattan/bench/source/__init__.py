"""What belongs to the source domain: its model and its subspace, made once and kept."""
