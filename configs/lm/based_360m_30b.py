"""Based, 363M parameters, 30B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "363m/30b"; settings in Table 7. 60,000 steps of 256 windows of 2,048
tokens: 31.5B. Perplexity in the paper: 7.77; 1.93 on tokens that can be recalled, 8.46 on the others. Without decay
(App. C), the model of the released checkpoints but for their windows. Not trained with this library. Data,
schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_360m(), steps=60_000)
