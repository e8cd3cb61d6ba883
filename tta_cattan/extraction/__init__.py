"""Frozen features of a benchmark's images: taken once, in shards, by as many processes as there are."""
