"""A run planned before its devices are rented: its train step compiled for accelerators that are not there."""
