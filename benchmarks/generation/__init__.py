"""What generation costs: `python -m benchmarks.generation`."""
