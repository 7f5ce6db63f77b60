"""The families of models that are read and written, by name."""

from collections.abc import Mapping

from jaxzoo.interop.families.based import BASED
from jaxzoo.interop.families.fla import FLA
from jaxzoo.interop.families.fla_rwkv6 import RWKV6_FLA
from jaxzoo.interop.families.gpt_neox import GPT_NEOX
from jaxzoo.interop.families.lfm2 import LFM2
from jaxzoo.interop.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from jaxzoo.interop.families.mamba import FALCON_MAMBA, MAMBA
from jaxzoo.interop.families.mamba2 import MAMBA2
from jaxzoo.interop.families.mamba_ssm import MAMBA_SSM
from jaxzoo.interop.families.olmo_hybrid import OLMO_HYBRID
from jaxzoo.interop.families.qwen3_next import QWEN3_5, QWEN3_NEXT
from jaxzoo.interop.families.recurrent_gemma import RECURRENT_GEMMA
from jaxzoo.interop.families.rwkv4 import RWKV4
from jaxzoo.interop.families.rwkv7 import RWKV7, RWKV7_FLA
from jaxzoo.interop.mapping import Family

_IN_ORDER = (
    LLAMA, MISTRAL, QWEN2, QWEN3, GPT_NEOX, MAMBA, MAMBA2, RWKV4, RWKV7, RWKV7_FLA, RECURRENT_GEMMA, QWEN3_NEXT, BASED,
    MAMBA_SSM, FALCON_MAMBA, LFM2, QWEN3_5, *FLA, RWKV6_FLA, OLMO_HYBRID,
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {family.name: family for family in _IN_ORDER}
"""All families; the first one that matches reads a folder, the first one that supports a model writes it."""
