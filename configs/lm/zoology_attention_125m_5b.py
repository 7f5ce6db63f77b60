"""Attention, 125M parameters, 5B tokens of the Pile: Zoology (Arora et al. 2024), Table 3; settings in Table 7.

10,000 steps of 256 windows of 2,048 tokens: 5.2B. Perplexity in the paper: 12.37; 2.32 on tokens that can be
recalled, 14.04 on the others. The steps are not printed; these are half of Table 7's. Not trained with this
library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_attention_125m(), steps=10_000)
