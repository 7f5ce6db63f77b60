"""Evaluations besides the validation loss: recall on real text, and public tasks."""
