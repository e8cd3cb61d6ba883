"""Point clouds: their geometry, parametric shapes, and the benchmarks made of them."""
