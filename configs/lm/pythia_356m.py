"""Transformer (Pythia), 356M parameters, 10B tokens of the Pile.

Based (Arora et al. 2024), Table 2, row "356m/10b"; no settings are printed. 20,000 steps of 256 windows of 2,048
tokens: 10.5B. The model is our reading, the training that of Table 8. LAMBADA's perplexity in the paper is 25.17.
Not trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.pythia_356m())
