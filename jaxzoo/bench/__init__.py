"""Recall per byte: the benchmark that compares mixers at equal sizes of their states (docs/recall_per_byte.md)."""
