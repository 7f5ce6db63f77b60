"""RetNet, 152M parameters, 10B tokens of the Pile: Zoology (Arora et al. 2024), Table 4; settings in Table 15.

20,000 steps of 256 windows of 2,048 tokens: 10.5B. Perplexity in the paper: 11.15; 3.01 on tokens that can be
recalled, 12.45 on the others. Not trained with this library. Data, schedule, and what the paper leaves open:
`recipes.zoology`.
"""

from jaxzoo import recipes
from jaxzoo.models import presets

config = recipes.zoology(presets.zoology_ret_net_152m(), b2=0.98, schedule="linear", final_rate=1e-5, weight_decay=0.05)
