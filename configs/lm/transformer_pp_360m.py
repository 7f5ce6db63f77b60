"""Transformer++, 360M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 to 3, row "360m/10b"; settings in Table 8. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 8.39; 1.87 on tokens that can be recalled, 9.42 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.transformer_pp_360m())
