"""Planted bugs: small wrong replacements in the source, each of which a core test must notice."""
