"""Based, 363M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 to 3, row "363m/10b", and Table 6; settings in Table 7. 20,000 steps of 256
windows of 2,048 tokens: 10.5B. Perplexity in the paper: 8.65; 2.07 on tokens that can be recalled, 9.64 on the
others. This row has the decay of App. C, as its numbers in Table 6 tell; those of 30B and 50B tokens have none. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_360m_ablation())
