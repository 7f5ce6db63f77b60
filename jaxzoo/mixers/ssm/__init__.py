"""Diagonal recurrences: state space models."""
