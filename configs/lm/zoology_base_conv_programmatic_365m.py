"""BaseConv and attention on tokens that stood before, 365M parameters, 10B tokens of the Pile.

Zoology (Arora et al. 2024), Table 2, row "+ Programmatic selection"; settings in Table 9. 20,000 steps of 256
windows of 2,048 tokens: 10.5B. Perplexity in the paper: 9.54; 2.35 on tokens that can be recalled, 10.50 on the
others. Not trained with this library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_base_conv_selective_365m(selection="programmatic"), mesh=recipes.SHARDED)
