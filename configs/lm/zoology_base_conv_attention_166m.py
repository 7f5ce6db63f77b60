"""BaseConv and three layers of attention, 166M parameters (170M here), 10B tokens of the Pile.

Zoology (Arora et al. 2024), Table 2, row "+ Full attention"; settings in Table 9. 20,000 steps of 256 windows of
2,048 tokens: 10.5B. Perplexity in the paper: 9.57; 2.01 on tokens that can be recalled, 10.76 on the others. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_base_conv_attention_166m())
