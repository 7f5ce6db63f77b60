"""Typed configs and JSON, independent of all other packages."""
