"""H3, 357M parameters, 10B tokens of the Pile: Zoology (Arora et al. 2024), Tables 1 and 4; settings in Table 13.

20,000 steps of 256 windows of 2,048 tokens: 10.5B. Perplexity in the paper: 10.38; 4.81 on tokens that can be
recalled, 11.00 on the others. Not trained with this library. Data, schedule, and what the paper leaves open:
`recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_h3_357m(), mesh=recipes.SHARDED)
