"""Trained models: read from runs and exported files, and written as runs."""

from jaxzoo.loading.loaded import Loaded, load

__all__ = ["Loaded", "load"]
