"""Mamba, 358M parameters, 30B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "358m/30b"; settings in Table 9. 60,000 steps of 256 windows of 2,048
tokens: 31.5B. Perplexity in the paper: 7.73; 2.02 on tokens that can be recalled, 8.38 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.mamba_360m(), steps=60_000)
