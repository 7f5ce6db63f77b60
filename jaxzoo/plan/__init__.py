"""A run planned before its devices are rented: its train step compiled ahead of time for absent accelerators."""
