"""Language models of CAT (Li et al. 2025), on SlimPajama: one entry per row of its tables.

Choose one by `--config configs/lm/cat.py --name NAME`; configs/README.md lists them with the paper's results. They
have not been trained with this library. Data, schedule, and what the paper leaves open: `recipes.cat`.
"""

from jaxzoo.models import presets
from jaxzoo.train import recipes

configs = {
    "pythia_370m": recipes.cat(presets.pythia_370m()),
    "cat_370m": recipes.cat(presets.cat_370m()),
    "cat_370m_no_pe": recipes.cat(presets.cat_370m(positions="none")),
    "mh_cat_370m": recipes.cat(presets.mh_cat_370m()),
    "mh_cat_370m_no_pe": recipes.cat(presets.mh_cat_370m(positions="none")),
    # The paper has no numbers of it: its training diverges.
    "pythia_370m_no_pe": recipes.cat(presets.pythia_370m(positions="none")),
}
