"""Pythia, 370M parameters, 15B tokens of SlimPajama: CAT (Li et al. 2025), Table 2, row "Pythia", and Figure 1 (right).

28,610 steps of 256 windows of 2,048 tokens: 15.0B. Perplexity of WikiText in the paper: 27.41. Not trained with
this library. Data, schedule, and what the paper leaves open: `recipes.cat`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.cat(presets.pythia_370m())
