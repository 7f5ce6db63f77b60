"""Based with queries and keys of width 32, 362M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Table 6, row "Taylor Exp. 32"; settings in Table 7. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 8.56; 2.00 on tokens that can be recalled, 9.57 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_360m_ablation(feature_dim=32))
