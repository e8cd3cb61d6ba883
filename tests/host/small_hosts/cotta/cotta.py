class CoTTA:
    """CoTTA's own method, which the small host does not run."""
