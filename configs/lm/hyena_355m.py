"""Hyena, 355M parameters, 10B tokens of the Pile: Based (Arora et al. 2024), settings in Table 10.

20,000 steps of 256 windows of 2,048 tokens: 10.5B. No table of results has it; 10B tokens are those of its size.
Not trained with this library. Data, schedule, and what the paper leaves open: `recipes.based`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.based(presets.hyena_355m())
