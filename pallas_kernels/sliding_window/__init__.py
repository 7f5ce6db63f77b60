"""Sliding-window softmax attention: see README.md for convention, layouts, floors and what is supported."""

from pallas_kernels.sliding_window.api import sliding_window_attention, sliding_window_step
from pallas_kernels.sliding_window.cache import SlidingWindowCache, empty_cache
from pallas_kernels.sliding_window.sharding import sharded_sliding_window_attention
from pallas_kernels.sliding_window.xla import keys_per_query

__all__ = [
    "SlidingWindowCache",
    "empty_cache",
    "keys_per_query",
    "sharded_sliding_window_attention",
    "sliding_window_attention",
    "sliding_window_step",
]
