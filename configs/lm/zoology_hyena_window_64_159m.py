"""Hyena and sliding windows of 64 tokens, 159M parameters, 10B tokens of the Pile.

Zoology (Arora et al. 2024), Table 4, row "+ Slide Attn. (64)"; settings in Table 11. 20,000 steps of 256 windows of
2,048 tokens: 10.5B. Perplexity in the paper: 11.57; 5.23 on tokens that can be recalled, 12.30 on the others. Not
trained with this library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_hyena_sliding_window_159m(window=64), b2=0.98, final_rate=1e-5)
