"""Attention, 73M parameters, 10B tokens of the Pile: Zoology (Arora et al. 2024), Table 4; settings in Table 7.

20,000 steps of 256 windows of 2,048 tokens: 10.5B. Perplexity in the paper: 12.99; 2.41 on tokens that can be
recalled, 14.76 on the others. Not trained with this library. Data, schedule, and what the paper leaves open:
`recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_attention_73m())
