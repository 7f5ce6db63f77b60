"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): the delta rule with the decay of Mamba-2 and an output gate.

With q', k', v and beta of `jaxzoo/mixers/linear/delta.py`, for each head:

    log a_t = -exp(A_log) softplus(x_t W_a + dt_bias)
    S_t = a_t S_{t-1} + beta_t k'_t (v_t - a_t k'_t^T S_{t-1})^T        o_t = S_t^T q'_t / sqrt(k)
    y = concat(rms(o_h) . silu(x W_G)) W_O

`n_value_heads` groups value heads under one head of queries and keys, as Qwen3-Next does.

| ours                           | fla's GatedDeltaNet              | Qwen3-Next of transformers                       |
| ------------------------------ | -------------------------------- | ------------------------------------------------ |
| `q_proj`, `k_proj`, `v_proj`   | the same                         | parts of `in_proj_qkvz`, by head of keys         |
| `gate_proj`                    | `g_proj`                         | its part z                                       |
| `beta_proj`, `decay_proj`      | `b_proj`, `a_proj`               | parts b and a of `in_proj_ba`, by head of keys   |
| `conv.taps`                    | `q_conv1d`, `k_conv1d`, `v_conv1d` | `conv1d`                                       |
| `a_log`, `dt_bias`             | `A_log`, `dt_bias`               | the same                                         |
| `norm.scale`, `out_proj`       | `o_norm.weight`, `o_proj`        | `norm.weight`, `out_proj`                        |

Initialisation: exp(A_log) uniform in (0, 16], dt_bias as in Mamba-2 (Qwen3-Next: 1); both without weight decay. The
paper's models have keys of 3/4 d_model and values of 3/2 d_model; the default is d_model for both. Without `gate`
(fla's `use_gate=False`) the heads are only normalized.

Good at: Recall and text: it overwrites single keys or forgets all at once; the linear layer of Qwen3-Next.
Paper: Yang et al. 2024, https://arxiv.org/abs/2412.06464
"""

import dataclasses
from typing import Self

from jaxzoo.mixers.linear.delta import GatedDeltaConfig, GatedDeltaMixer


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(GatedDeltaConfig):
    """Config of `GatedDeltaNet`."""

    @classmethod
    def tiny(cls) -> Self:
        return cls(d_model=7, n_heads=2, n_value_heads=4, key_width=8, value_width=16, n_taps=3)


class GatedDeltaNet(GatedDeltaMixer):
    """The delta rule with a decay per token and head, its parameters those of `GatedDeltaMixer`; `step` costs O(k v)
    per head."""

    config: GatedDeltaNetConfig
