"""`cudnn`: the programs that it makes, as if a GPU were present, and its numbers where one is (`-m gpu`)."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dispatch
from pallas_kernels.sliding_window import cudnn, sharded_sliding_window_attention, sliding_window_attention
from pallas_kernels.sliding_window.api import BACKENDS, OP, kernels
from tests.pallas_kernels.shared import assert_close, full, lowered, make_mesh, needs_eight_devices
from tests.pallas_kernels.sliding_window.cases import Call, measured, problem, truth

ARRAYS = [jax.ShapeDtypeStruct((2, 300, heads, 64), jnp.bfloat16) for heads in (4, 2, 2)]


@pytest.fixture
def some_gpu(monkeypatch):
    """A process in which programs for CUDA are compiled for a GPU that is there and no Hopper, with cuDNN."""
    gpu = types.SimpleNamespace(compute_capability="8.0")
    monkeypatch.setattr(
        "pallas_kernels.dispatch.target_device", lambda ctx, found=dispatch.target_device: found(ctx) or gpu
    )
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91300)
    cudnn._refusal.cache_clear()
    yield
    cudnn._refusal.cache_clear()


def gradients(**options):
    attend = functools.partial(sliding_window_attention, **options)
    return lambda q, k, v: jax.vjp(attend, q, k, v)[1](q)


def calls(text):
    """[(name, mask, window or None)] of cuDNN's calls in a program."""
    found = re.findall(r"@__cudnn\$(\w+)\(.*?mask_type\\22: \\22(\w+)\\22.*?sliding_window_length\\22: (\w+)", text)
    return [(name, mask, None if window == "null" else int(window)) for name, mask, window in found]


@pytest.mark.parametrize(
    ("window", "length", "implementation"),
    [(200, 200, "cudnn"), (300, 0, None), full(200, 200, None), full(300, 0, "cudnn"), full(4096, 0, None)],
)
@pytest.mark.usefixtures("some_gpu")
def test_the_calls_of_both_passes(implementation, window, length):
    """Kills a window that is off by one (cuDNN's counts the token itself), a mask that is not causal, and a forward
    pass that XLA could not merge with the one that the gradients ask for."""
    text = lowered(gradients(window=window, implementation=implementation), ARRAYS, "cuda")
    forward, again, backward = calls(text)
    assert forward == again == ("fmhaSoftmax", "CAUSAL", length)
    assert backward == ("fmhaSoftmaxBackward", "CAUSAL", length)
    assert "mosaic_gpu" not in text


@pytest.mark.full
@pytest.mark.usefixtures("some_gpu")
def test_other_platforms_take_their_own():
    """Kills a program for a CPU or a TPU that calls cuDNN because a GPU is present."""
    for platform, marker in (("cpu", "exponential"), ("tpu", "tpu_custom_call")):
        text = lowered(gradients(window=200), ARRAYS, platform)
        assert marker in text
        assert not calls(text)


@pytest.mark.usefixtures("some_gpu")
def test_no_quadratic_residuals():
    """Kills a gradient that saves the scores of the branch that does not run: 300 x 300 a head."""
    attend = functools.partial(sliding_window_attention, window=300)
    _, pull_back = jax.eval_shape(lambda *x: jax.vjp(attend, *x), *ARRAYS)
    assert max(np.prod(x.shape) for x in jax.tree.leaves(pull_back)) <= 2 * 300 * 4 * 64


@pytest.mark.full
@needs_eight_devices
@pytest.mark.usefixtures("some_gpu")
def test_each_device_calls_its_own():
    """Kills a call of cuDNN on a mesh that is left to the partitioner."""
    axes = {"mesh": make_mesh((2, 2)), "batch_axes": ("x",), "head_axes": ("y",)}
    attend = functools.partial(sharded_sliding_window_attention, window=300, **axes)
    text = lowered(lambda q, k, v: jax.vjp(attend, q, k, v)[1](q), ARRAYS, "cuda")
    assert [name for name, _, _ in calls(text)] == ["fmhaSoftmax", "fmhaSoftmax", "fmhaSoftmaxBackward"]
    local = "(tensor<1x300x2x64xbf16>, tensor<1x300x1x64xbf16>, tensor<1x300x1x64xbf16>"
    assert text.count(local) >= 2


REFUSED = [
    ({"dtype": "float32"}, "dtype float32 is not one of bfloat16, float16"),
    ({"v": 32}, "head_dims 64 of keys and 32 of values differ"),
    ({"k": 60, "v": 60}, "multiple of 8"),
    ({"t": 63}, "t=63 is less than 64 tokens"),
    ({"past": 3}, "tokens before"),
    ({"start": True}, "tokens before"),
    ({"segments": True}, "segment_ids"),
]


@pytest.mark.usefixtures("some_gpu")
def test_refusals():
    """Kills an operand that is ignored, and a shape that fails only when it is compiled."""
    assert objection(problem()) is None
    for change, reason in REFUSED:
        assert reason in objection(problem(**change))


def objection(p):
    return BACKENDS["cudnn"].objection(p) or BACKENDS["cudnn"].target_objection(p, "some device")


@pytest.mark.slow
def test_without_a_gpu():
    """Kills a choice of cuDNN by a program that is compiled ahead of time, which cannot ask what it serves."""
    attend = functools.partial(sliding_window_attention, window=9, implementation="cudnn")
    with pytest.raises(NotImplementedError, match=r"^cudnn: asks the GPU .* is not known; use implementation='xla'"):
        lowered(attend, ARRAYS, "cuda")
    assert not calls(lowered(gradients(window=300), ARRAYS, "cuda"))


def test_the_whole_past_is_cudnns_first():
    first = {w: kernels(OP, problem(window=w))[0] for w in (16, 63, 64, 99)}
    assert first == {16: "mosaic_gpu", 63: "mosaic_gpu", 64: "cudnn", 99: "cudnn"}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("window", [1, 16, 64, 129, 200, 1000])
def test_values_and_gradients_on_a_device(window, dtype):
    """The window of cuDNN against ours: off by one is off by 1 / window, far above the rounding of bfloat16."""
    call = Call(t=200, b=3, k=64, v=64, window=window, dtype=dtype)
    outputs, found = measured(call, implementation="cudnn")
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 4e-3)
    if window > 1:  # the softmax of one score has no slope
        assert_close(found, expected_gradients, 8e-3)


@pytest.mark.gpu
def test_the_forward_pass_runs_once_on_a_device():
    """Kills a forward pass that runs again for the gradients."""
    run = gradients(window=300, implementation="cudnn")
    text = jax.jit(
        lambda q, k, v: (sliding_window_attention(q, k, v, window=300, implementation="cudnn"), run(q, k, v))
    )
    compiled = text.lower(*ARRAYS).compile().as_text()
    assert compiled.count('custom_call_target="__cudnn$fmhaSoftmax"') == 1
    assert compiled.count('custom_call_target="__cudnn$fmhaSoftmaxBackward"') == 1
