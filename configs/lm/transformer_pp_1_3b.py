"""Transformer++, 1.33B parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "1.33b/10b"; settings in Table 8. 20,000 steps of 256 windows of
2,048 tokens: 10.5B. Perplexity in the paper: 7.26; 1.74 on tokens that can be recalled, 8.10 on the others. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.transformer_pp_1_3b())
