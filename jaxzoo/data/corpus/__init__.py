"""Corpora: files of text, read as documents, and built into tensorflow-datasets directories."""
