"""The kernels' cases by platform, in the order in which they are run: smallest first, forward before backward.

Lengths: one chunk of 64; one token more; 72, 120 and 200, where copies end within a chunk; 8184, the same when long.
Of a long case the last row alone is checked; a short case with two rows tells them apart.
"""

from typing import Any

from pallas_kernels.verify.attention_cases import TaylorCase, WindowCase
from pallas_kernels.verify.general_cases import GeneralCase
from pallas_kernels.verify.kernel_case import KernelCase
from pallas_kernels.verify.recurrence_cases import DeltaCase, GatedCase, ScanCase
from pallas_kernels.verify.ut_cases import TransformCase, ValuesCase
from pallas_kernels.verify.wkv_cases import WkvCase


def _taylor(*, gpu: bool) -> list[dict]:
    small = [{"t": 64, "state": False}, {"t": 64}, {"t": 65, "b": 2}, {"t": 72, "g": 1}, {"t": 120, "decay": True}]
    small += [{"t": 200, "g": 1, "decay": True}]
    if gpu:
        small += [{"t": 200, "segments": 2, "state": False}, {"t": 200, "segments": 2, "decay": True}]
    return [*small, {"t": 8184, "b": 2}, {"t": 8192, "b": 4, "h": 16, "g": 16}]


def _window(*, past: int, gpu: bool) -> list[dict]:
    small = [{"t": 64}, {"t": 65, "b": 2}, {"t": 72, "past": past}, {"t": 120, "window": 128}, {"t": 200, "d": 96}]
    if gpu:
        small += [{"t": 200, "segments": True}, {"t": 200, "g": 1}]
    headline = {"t": 8192, "b": 4, "h": 16, "g": 16}
    return [*small, {"t": 8184, "b": 2}, headline, headline | {"window": 128}]


def _gated() -> list[dict]:
    small = [{"t": 64}, {"t": 65, "b": 2}, {"t": 72, "g": 1, "k": 128}]
    small += [{"t": 200, "documents": True, "v": 128, "k": 128}]
    long = [{"t": 8184, "b": 2}, {"t": 8192, "b": 4, "h": 16, "g": 16}]
    channel = [{"t": 65, "b": 2}, {"t": 200, "documents": True, "v": 128, "k": 128}, *long]
    return [*small, *long, *[x | {"channel": True} for x in channel]]


def _scan() -> list[dict]:
    small = [{"t": 64}, {"t": 65, "n": 8}, {"t": 72, "b": 2, "delta_dtype": "bfloat16"}, {"t": 200, "documents": True}]
    return [*small, {"t": 8184, "d": 512}, {"t": 8192, "b": 4, "d": 1024}]


def _delta() -> list[dict]:
    small = [{"t": 64}, {"t": 128, "b": 2, "k": 128}, {"t": 192, "k": 128, "v": 128}]
    small += [{"t": 320, "v": 192}, {"t": 64, "v": 256}]
    headline = {"t": 8192, "b": 4, "h": 16, "g": 16}
    return [*small, headline, headline | {"k": 128, "v": 128}]


def _general() -> list[dict]:
    small = [{"t": 64}, {"t": 65, "b": 2}, {"t": 200, "documents": True}]
    return [*small, {"t": 8184, "b": 2}, {"t": 8192, "b": 4, "h": 16, "g": 16}]


def _transform() -> list[dict]:
    small = [{"t": 64}, {"t": 128, "b": 2, "decay": "token"}, {"t": 576, "k": 128, "decay": "token"}, {"t": 64, "k": 0}]
    small += [{"t": 64, "repeated": True}, {"t": 576, "b": 2, "k": 0, "rates": False}]
    small += [{"t": 576, "b": 2, "decay": "channel"}]
    headline = {"t": 8192, "b": 4, "h": 16, "g": 16}
    decays = [{"decay": "token"}, {"decay": "channel"}, {"k": 128, "decay": "token"}]
    return [*small, headline, *[headline | x for x in decays]]


def _wkv() -> list[dict]:
    small = [{"t": 16}, {"t": 65, "b": 2}, {"t": 72, "dtype": "float32"}, {"t": 200, "documents": True}]
    return [*[x | {"d": 512} for x in small], {"t": 8184, "d": 768, "b": 2}, {"t": 8192, "b": 4, "d": 1024}]


def _values() -> list[dict]:
    small = [{"t": 64}, {"t": 576, "b": 2, "decay": "token"}, {"t": 128, "k": 128, "v": 128, "decay": "token"}]
    channel = {"decay": "channel"}
    small += [channel | x for x in ({"t": 128, "b": 2}, {"t": 192, "weak": True}, {"t": 576}, {"t": 64, "v": 128})]
    headline = {"t": 8192, "b": 4, "h": 16, "g": 16}
    return [*small, headline, headline | {"decay": "token"}, headline | channel]


def _ordered(implementation: str) -> list[KernelCase]:
    gpu = implementation == "mosaic_gpu"
    cases: list[KernelCase] = []
    for backward in (False, True):
        both: dict[str, Any] = {"implementation": implementation, "backward": backward}
        cases += [TaylorCase(**both, **x) for x in _taylor(gpu=gpu)]
        cases += [WindowCase(**both, **x) for x in _window(past=63, gpu=gpu)]
        cases += [GatedCase(**both, **x) for x in _gated()]
        cases += [ScanCase(**both, **x) for x in _scan()]
        cases += [DeltaCase(**both, **x) for x in _delta() if gpu]
        cases += [GeneralCase(**both, **x) for x in _general() if gpu]
        cases += [TransformCase(**both, **x) for x in _transform() if gpu]
        cases += [WkvCase(**both, **x) for x in _wkv()]
        cases += [ValuesCase(**both, **x) for x in _values() if gpu]
    return sorted(cases, key=lambda case: case.b * case.h * case.t)  # stable: forward before backward


def _interpreted(backward: bool) -> list[KernelCase]:
    """A short chunk on a GPU, whose interpreter is slow; a chunk and a token on a TPU."""
    gpu: dict[str, Any] = {"implementation": "mosaic_gpu", "backward": backward, "t": 40, "h": 1, "g": 1}
    tpu = gpu | {"implementation": "mosaic_tpu", "dtype": "float32", "t": 65, "k": 8, "v": 16}
    wide: dict[str, Any] = gpu | {"implementation": "mosaic_tpu", "dtype": "float32", "n": 8}
    scans = [ScanCase(**gpu, d=64), ScanCase(**wide)]
    whole: dict[str, Any] = gpu | {"t": 64}
    wkvs = [WkvCase(**gpu), WkvCase(**gpu | {"implementation": "mosaic_tpu", "dtype": "float32", "d": 512})]
    cases: list[KernelCase] = [WindowCase(**gpu), TaylorCase(**tpu), TaylorCase(**gpu), GatedCase(**gpu), *scans]
    whole_with_decay: dict[str, Any] = whole | {"decay": "token"}
    cases += [DeltaCase(**whole), TransformCase(**whole_with_decay), ValuesCase(**whole_with_decay)]
    return [*cases, *wkvs, GeneralCase(**whole)]


CASES = {
    "gpu": _ordered("mosaic_gpu"),
    "tpu": _ordered("mosaic_tpu"),
    "cpu": [*_interpreted(False), *_interpreted(True)],
}
"""By the platform that JAX finds; on a CPU the kernels are interpreted."""
