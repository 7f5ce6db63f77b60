"""Attention, 125M parameters, 10B tokens of the Pile.

Zoology (Arora et al. 2024), Tables 1, 2, 4 and 5; settings in Table 7. 20,000 steps of 256 windows of 2,048 tokens:
10.5B. Perplexity in the paper: 11.01; 2.16 on tokens that can be recalled, 12.45 on the others. Not trained with
this library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_attention_125m())
