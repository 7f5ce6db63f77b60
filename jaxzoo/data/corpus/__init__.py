"""Corpora: documents read from text files, and built into tensorflow-datasets directories."""
