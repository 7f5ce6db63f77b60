"""Evaluations in addition to the validation loss: recall on real text, and public tasks."""
