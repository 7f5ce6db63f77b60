"""Based, 1.35B parameters, 50B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "1.35b/50b"; settings in Table 7. 100,000 steps of 256 windows of
2,048 tokens: 52.4B. Perplexity in the paper: 6.30; 1.71 on tokens that can be recalled, 6.82 on the others. Without
decay (App. C). Not trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_1_3b(), steps=100_000)
