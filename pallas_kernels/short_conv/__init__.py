"""short_conv: depthwise causal convolution of a few taps, with gates, bias and SiLU."""

from pallas_kernels.short_conv.api import IMPLEMENTATIONS, sharded_short_conv, short_conv

__all__ = ["IMPLEMENTATIONS", "sharded_short_conv", "short_conv"]
