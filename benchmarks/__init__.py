"""Benchmarks: commands for a clone of the repository; not part of the package."""
