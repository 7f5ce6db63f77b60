"""Checkpoints of other libraries, read and written: `load` and `save`."""

from jaxzoo.interop.loading import Loaded as Loaded, load as load
from jaxzoo.interop.saving import save as save
