"""Benchmarks: commands for a clone of the repository, no part of the package."""
