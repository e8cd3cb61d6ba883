"""Benchmarks by name, corruption maths, seeded streams of batches."""
