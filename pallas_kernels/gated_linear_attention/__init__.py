"""Linear attention with a decay per token and head, or per channel: RetNet, Mamba-2, GLA."""

from pallas_kernels.gated_linear_attention.api import (
    IMPLEMENTATIONS,
    gated_linear_attention,
    sharded_gated_linear_attention,
)

__all__ = ["IMPLEMENTATIONS", "gated_linear_attention", "sharded_gated_linear_attention"]
