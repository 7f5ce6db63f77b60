"""Generation from language models of any mixers, as a library."""

from jaxzoo.generation.generate import Generation, generate
from jaxzoo.generation.sampling import Sampling

__all__ = ["Generation", "Sampling", "generate"]
