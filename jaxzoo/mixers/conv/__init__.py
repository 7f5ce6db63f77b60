"""Filters: gated convolutions, short and long."""
