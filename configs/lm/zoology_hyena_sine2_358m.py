"""Hyena with filters of sine frequency 2, 358M parameters, 10B tokens of the Pile.

Zoology (Arora et al. 2024), Table 5; settings in Table 11. 20,000 steps of 256 windows of 2,048 tokens: 10.5B.
Perplexity in the paper: 9.86; 3.46 on tokens that can be recalled, 10.69 on the others. Not trained with this
library. Data, schedule, and what the paper leaves open: `recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_hyena_358m(sine_frequency=2.0), b2=0.98, final_rate=1e-5, mesh=recipes.SHARDED)
