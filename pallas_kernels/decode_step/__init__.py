"""Decode steps of one token that update their states in place; README.md lists their bytes and support."""

from pallas_kernels.decode_step.api import conv_step, has_window_kernel, taylor_step, window_step

__all__ = ["conv_step", "has_window_kernel", "taylor_step", "window_step"]
