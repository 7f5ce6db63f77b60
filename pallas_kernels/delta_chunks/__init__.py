"""Delta rules in chunks: the recurrence of DeltaNet, Gated DeltaNet and Kimi Delta Attention; RWKV-7 whole."""

from pallas_kernels.delta_chunks.api import IMPLEMENTATIONS, delta_chunks, sharded_delta_chunks
from pallas_kernels.delta_chunks.general_api import general_delta_rule

__all__ = ["IMPLEMENTATIONS", "delta_chunks", "general_delta_rule", "sharded_delta_chunks"]
