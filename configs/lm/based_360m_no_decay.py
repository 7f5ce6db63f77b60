"""Based: no decay, 362M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Table 6, row without decay; settings in Table 7. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 8.65; 2.04 on tokens that can be recalled, 9.66 on the others. The same
model as that of 30B tokens. Not trained with this library. Data, schedule, and what the paper leaves open:
`recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_360m_ablation(decay=False))
