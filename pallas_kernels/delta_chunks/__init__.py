"""The recurrence over chunks of every delta rule: DeltaNet, Gated DeltaNet, Kimi Delta Attention."""

from pallas_kernels.delta_chunks.api import IMPLEMENTATIONS, delta_chunks
from pallas_kernels.delta_chunks.sharding import sharded_delta_chunks

__all__ = ["IMPLEMENTATIONS", "delta_chunks", "sharded_delta_chunks"]
