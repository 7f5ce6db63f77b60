"""Based with Performer's features, 362M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Table 6, row "Performer 16"; settings in Table 7. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 9.08; 8.53 on tokens that can be recalled, 11.62 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_360m_ablation(feature_map="performer"))
