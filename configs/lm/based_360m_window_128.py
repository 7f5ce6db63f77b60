"""Based with windows of 128 tokens, 362M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Table 6, row windows of 128; settings in Table 7. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 8.61; 2.06 on tokens that can be recalled, 9.60 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_360m_ablation(window=128))
