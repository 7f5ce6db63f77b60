"""H3, 362M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Tables 1 and 2, row "362m/10b"; settings in Table 11. 20,000 steps of 256 windows of
2,048 tokens: 10.5B. Perplexity in the paper: 10.60; 4.88 on tokens that can be recalled, 11.23 on the others. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.h3_362m(), b2=0.99)
