"""Verification on a new kind of device: every kernel against float64, each case in its own process."""
