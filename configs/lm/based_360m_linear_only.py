"""Based: linear attention alone, queries and keys of width 24, 362M parameters (300M here), 10B tokens of the Pile.

Based (Arora et al. 2024), Table 6, row "Taylor Exp. 24" without windows and convolutions; settings in Table 7.
20,000 steps of 256 windows of 2,048 tokens: 10.5B. Perplexity in the paper: 9.49; 2.29 on tokens that can be
recalled, 10.58 on the others. Not trained with this library. Data, schedule, and what the paper leaves open:
`recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.based_360m_ablation(feature_dim=24, window=0, convolutions=False))
