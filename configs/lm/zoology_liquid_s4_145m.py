"""Liquid-S4, 145M parameters, 5B tokens of the Pile: Zoology (Arora et al. 2024), Table 3; no settings are printed.

10,000 steps of 256 windows of 2,048 tokens: 5.2B. Perplexity in the paper: 16.80; 22.75 on tokens that can be
recalled, 16.42 on the others. Neither the model nor its training is printed: the preset says how we read it, the
rest is Table 13's, H3. Not trained with this library. Data, schedule, and what the paper leaves open:
`recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_liquid_s4_145m(), steps=10_000)
