"""Recurrences as pure functions of arrays, shared by mixers."""
