"""Mamba, 1.32B parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "1.32b/10b"; settings in Table 9. 20,000 steps of 256 windows of
2,048 tokens: 10.5B. Perplexity in the paper: 7.48; 1.96 on tokens that can be recalled, 8.29 on the others. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.mamba_1_3b())
