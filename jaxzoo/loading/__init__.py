"""Loading of trained models from runs and exported files, and import as runs."""

from jaxzoo.loading.loaded import Loaded, load

__all__ = ["Loaded", "load"]
