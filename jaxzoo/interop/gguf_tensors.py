"""Tensors of GGUF files, by the names of the hub's folders."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class LazyTensor:
    """Tensor that is dequantized on demand (`np.asarray`)."""

    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    def changed(self, change: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...] | None = None) -> "LazyTensor":
        """Returns the tensor after a change, of this or of another shape."""
        return LazyTensor(self.shape if shape is None else shape, lambda: change(self.make()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.make(), dtype)


def renamed(name: str, layers: Mapping[str, str], ends: Mapping[str, str], prefix: str) -> str:
    """Returns the hub's name of a tensor, or its own, which the account of tensors then refuses."""
    inside = re.fullmatch(r"blk\.(\d+)\.([\w.]+?)(\.weight|\.bias|)", name)
    if inside and inside[2] in layers:
        return f"{prefix}.{inside[1]}.{layers[inside[2]]}{inside[3]}"
    first, dot, end = name.partition(".")
    return f"{ends[first]}{dot}{end}" if first in ends else name


def as_conv1d(taps: LazyTensor) -> LazyTensor:
    """Returns taps (channels, w) of a depthwise convolution as (channels, 1, w)."""
    return taps.changed(lambda x: x[:, None], (taps.shape[0], 1, taps.shape[-1]))
