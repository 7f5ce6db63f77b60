"""BaseConv, 168M parameters (164M here), 10B tokens of the Pile.

Zoology (Arora et al. 2024), Table 2; settings in Table 9. 20,000 steps of 256 windows of 2,048 tokens: 10.5B.
Perplexity in the paper: 12.90; 8.68 on tokens that can be recalled, 13.29 on the others. Not trained with this
library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_base_conv_168m())
