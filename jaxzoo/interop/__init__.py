"""Checkpoints of other libraries, read and written: `load` and `save`."""

from jaxzoo.interop.loading import Imported as Imported, load as load
from jaxzoo.interop.saving import save as save
