"""Based, 1.35B parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "1.35b/10b"; settings in Table 7. 20,000 steps of 256 windows of
2,048 tokens: 10.5B. Perplexity in the paper: 7.43; 1.87 on tokens that can be recalled, 8.26 on the others. With
the decay of App. C, which models of 10B tokens have (App. D.4). Not trained with this library. Data, schedule, and
what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_1_3b(decay=True))
