"""Cost of generation: `python -m benchmarks.generation`."""
