"""Checkpoints of other libraries, read and written: `load` and `save`."""

from jaxzoo.interop.loading import Imported, load
from jaxzoo.interop.saving import save

__all__ = ["Imported", "load", "save"]
