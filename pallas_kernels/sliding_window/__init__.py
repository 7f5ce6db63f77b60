"""Sliding-window softmax attention; README.md describes conventions, layouts, floors and support."""

from pallas_kernels.sliding_window.api import (
    sharded_sliding_window_attention,
    sliding_window_attention,
    sliding_window_step,
)
from pallas_kernels.sliding_window.cache import SlidingWindowCache, empty_cache
from pallas_kernels.sliding_window.xla import keys_per_query

__all__ = [
    "SlidingWindowCache",
    "empty_cache",
    "keys_per_query",
    "sharded_sliding_window_attention",
    "sliding_window_attention",
    "sliding_window_step",
]
