"""BaseConv and attention on random tokens, 162M parameters (170M here), 10B tokens of the Pile.

Zoology (Arora et al. 2024), Table 2, row "+ Random selection"; settings in Table 9. 20,000 steps of 256 windows of
2,048 tokens: 10.5B. Perplexity in the paper: 12.13; 5.33 on tokens that can be recalled, 12.83 on the others. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_base_conv_selective_162m(selection="random"))
