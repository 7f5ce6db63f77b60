"""Recurrences as pure functions of arrays, shared by mixers, where no hardware kernel exists."""
