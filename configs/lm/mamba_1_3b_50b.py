"""Mamba, 1.32B parameters, 50B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "1.32b/50b"; settings in Table 9. 100,000 steps of 256 windows of
2,048 tokens: 52.4B. Perplexity in the paper: 6.28; 1.74 on tokens that can be recalled, 6.78 on the others. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.mamba_1_3b(), steps=100_000)
