"""Recurrences as pure functions of arrays, for which no hardware kernel exists yet."""
