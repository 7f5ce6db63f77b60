"""Generation from language models of any mixers: `python -m jaxzoo.generate`, and the same as a library."""

from jaxzoo.generation.run import Generation, generate
from jaxzoo.generation.sampling import Sampling

__all__ = ["Generation", "Sampling", "generate"]
