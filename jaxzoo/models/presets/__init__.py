"""The models of Zoology, Based and CAT, and models of mixers of 2024 to 2026 and of hybrids, by name and size.

A preset is a function that returns a `LanguageModelConfig`: every public function of these modules but `preset_parts`.
`variant="paper"` follows the paper and `variant="release"` the code that its authors released, where these disagree.
Where a paper's table of settings and its parameter count disagree, the preset has the count, and `as_printed=True`
follows the table. Parameter counts in the docstrings are ours and include padding rows of the vocabulary.

Deviation shared by all: no dropout on attention weights (0.1 in the released MQAR attention runs).
"""

import inspect
import re
from collections.abc import Callable

from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.models.presets import preset_parts
from jaxzoo.models.presets.attention import *
from jaxzoo.models.presets.based import *
from jaxzoo.models.presets.cat import *
from jaxzoo.models.presets.mqar_based import *
from jaxzoo.models.presets.mqar_cat import *
from jaxzoo.models.presets.mqar_zoology import *
from jaxzoo.models.presets.preset_parts import Variant as Variant
from jaxzoo.models.presets.recurrent import *
from jaxzoo.models.presets.zoology import *
from jaxzoo.models.presets.zoology_base_conv import *
from jaxzoo.models.presets.zoology_hyena import *


def _name(preset: Callable[..., LanguageModelConfig]) -> str:
    """The name for users: `transformer_pp_1_3b` is transformer++-1.3b."""
    return re.sub(r"_(\d)_(\d)b", r"-\1.\2b", preset.__name__).replace("_pp", "++").replace("_", "-")


PRESETS: dict[str, Callable[..., LanguageModelConfig]] = {
    _name(value): value
    for value in list(globals().values())
    if inspect.isfunction(value) and value.__module__ not in (__name__, preset_parts.__name__)
}
"""Every preset by its name; all can be called without arguments."""
