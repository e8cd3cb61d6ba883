"""What the package costs, each script against its peers in one run: ``python -m benchmarks.speed.<name>``."""
