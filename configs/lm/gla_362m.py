"""Gated linear attention, 362M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Table 1, row "362m/10b"; settings in Table 13. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. Perplexity in the paper: 9.12; 2.36 on tokens that can be recalled, 10.68 on the others. Not trained
with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.gla_362m())
