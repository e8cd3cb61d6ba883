"""Models: where the source model comes from and what adaptation needs to know of it."""
