"""Mamba, 358M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 to 3, row "358m/10b"; settings in Table 9. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 8.64; 2.21 on tokens that can be recalled, 9.59 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.mamba_360m())
