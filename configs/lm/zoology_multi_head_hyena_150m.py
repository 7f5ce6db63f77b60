"""Multi-head Hyena, 150M parameters (159M here), 10B tokens of the Pile.

Zoology (Arora et al. 2024), Table 5, row "+ 4 Heads"; settings in Table 11. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 11.05; 3.47 on tokens that can be recalled, 12.07 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_multi_head_hyena_150m(), b2=0.98, final_rate=1e-5)
