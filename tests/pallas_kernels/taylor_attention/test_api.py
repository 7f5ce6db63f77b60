"""The public functions: which implementation runs where, refusals, transformations, and single steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dispatch import lowering_for
from pallas_kernels.taylor_attention import TaylorState, api, empty_state, taylor_attention, taylor_attention_step
from pallas_kernels.taylor_attention.problem import Problem
from tests.pallas_kernels.shared import MARKERS, PLATFORMS, assert_close, full, lowered, slow
from tests.pallas_kernels.taylor_attention.cases import Call, truth

TARGETS = list(MARKERS.items())
SERVED = Problem(b=2, t=128, h=8, k=16, v=64)
"""bfloat16, and a shape that both kernels take."""
GROUPED = Problem(b=2, t=128, h=8, g=2, k=16, v=64)


def value(*arrays, **options):
    return taylor_attention(*arrays, **options).astype(jnp.float32).sum()


@pytest.mark.slow
@pytest.mark.parametrize("spec", [full(SERVED), GROUPED], ids=["heads", "grouped"])
@pytest.mark.parametrize(("platform", "marker"), TARGETS)
def test_the_platform_of_the_program_chooses(platform, marker, spec):
    """Kills a choice by the host's backend: from a CPU, H100 and TPU programs hold their kernels (one forward,
    two backward), and only those."""
    arrays = jax.eval_shape(spec.inputs)
    gradient = jax.grad(value, (0, 1, 2))
    assert lowered(value, arrays, platform).count(f"@{marker}") == 1
    assert lowered(gradient, arrays, platform).count(f"@{marker}") == 3
    assert lowered(gradient, arrays, "cpu").count("custom_call @") == 0
    by_name = functools.partial(value, implementation="xla")
    assert marker not in lowered(jax.grad(by_name, (0, 1, 2)), arrays, platform)


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "marker"), TARGETS)
def test_kernels_survive_transformations(platform, marker):
    """Kills a gradient that leaves its kernel under remat, nested jit and vmap, with states in and out."""
    arrays = jax.eval_shape(lambda: [x[None] for x in SERVED.inputs()])

    def loss(*arrays):
        def attend(*x):
            state = empty_state(SERVED.b, SERVED.h, SERVED.k, SERVED.v)
            y, state = taylor_attention(*x, initial_state=state, return_state=True)
            return y.astype(jnp.float32).sum() + state.s.sum()

        return jax.vmap(jax.checkpoint(jax.jit(attend)))(*arrays).sum()

    assert lowered(jax.grad(loss, (0, 1, 2)), arrays, platform).count(f"@{marker}") >= 3


def test_border_states_are_saved_only_for_gpus():
    """Kills states in the layout of the Hopper kernels, 2.5 MB here, that CPUs and TPUs carry to the backward pass."""
    arrays = jax.eval_shape(Problem(b=1, t=4096, h=4, k=16, v=64).inputs)

    def residuals():
        pull_back = jax.eval_shape(lambda *x: jax.vjp(lambda *y: taylor_attention(*y), *x)[1], *arrays)
        return [x.shape for x in jax.tree.leaves(pull_back) if x.dtype == jnp.float32 and x.ndim > 3]

    assert residuals() == []
    with lowering_for("cuda"):
        assert len(residuals()) == (2 if "cuda" in PLATFORMS else 0)
    with lowering_for("tpu"):
        assert residuals() == []


def test_unserved_calls_fall_to_xla_silently_only_without_a_name():
    """Kills a refusal where nobody asked for a kernel: float16 on GPU, k = 5 anywhere, an explicit chunk."""
    for platform, spec, options in [
        ("cuda", Problem(b=1, t=64, h=2, k=16, v=64, dtype=jnp.float16), {}),
        ("cuda", Problem(b=1, t=64, h=2, k=24, v=64, dtype=jnp.float32), {}),
        ("cuda", Problem(b=1, t=64, h=2, k=33, v=64), {}),
        ("tpu", Problem(b=1, t=64, h=2, k=5, v=64), {}),
        ("tpu", SERVED, {"chunk_size": 16}),
    ]:
        text = lowered(functools.partial(value, **options), jax.eval_shape(spec.inputs), platform)
        assert "tpu_custom_call" not in text
        assert "mosaic_gpu" not in text


small = functools.partial(Problem, b=1, t=64, h=2)
REFUSED = [
    ("mosaic_gpu", small(k=33, v=64), "feature_dim=33 is more than 32, the most for bfloat16"),
    ("mosaic_gpu", small(k=17, v=64, dtype=jnp.float32), "feature_dim=17 is more than 16, the most for float32"),
    (
        "mosaic_gpu",
        small(k=16, v=64, dtype=jnp.float16),
        r"dtypes of q, k, v are \('float16', 'float16', 'float16'\), not all bfloat16 or all float32",
    ),
    ("mosaic_tpu", small(k=16, v=60), "head_dim=60 is not a multiple of 8 up to 128"),
    ("mosaic_tpu", small(k=5, v=64), "feature_dim=5 is not one of 8, 16, 24, 32"),
    ("mosaic_tpu", small(k=16, v=64, dtype=jnp.float16), "not all bfloat16 or all float32"),
]


def test_named_implementations_never_fall_back():
    for implementation, spec, reason in REFUSED:
        if implementation == "mosaic_gpu" and "cuda" not in PLATFORMS:
            continue
        with pytest.raises(NotImplementedError, match=rf"^{implementation}: .*{reason}; use implementation='xla'$"):
            taylor_attention(*jax.eval_shape(spec.inputs), implementation=implementation)


def test_kernels_refuse_what_is_not_theirs():
    """Kills a kernel that ignores an option, or a mesh that the compiler partitions."""
    arrays = jax.eval_shape(SERVED.inputs)
    with pytest.raises(NotImplementedError, match="chunk_size=16 is an option of xla"):
        taylor_attention(*arrays, implementation="mosaic_tpu", chunk_size=16)
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        with pytest.raises(NotImplementedError, match=r"mesh axes \('data', 'tensor'\) are not manual"):
            taylor_attention(*arrays, implementation="mosaic_tpu")
        assert "tpu_custom_call" not in lowered(value, arrays, "tpu")


@pytest.mark.parametrize(
    ("implementation", "setting"),
    [("xla", "decay"), slow("xla", "raw"), slow("reference", "plain"), slow("reference", "raw")],
)
def test_steps(implementation, setting):
    """Kills a step that decays late, reads before it writes, or pairs heads with the wrong keys; and a
    sequence that does not continue where the steps stopped, gradients included."""
    call = {
        "plain": Call(t=9, h=2, g=2),
        "decay": Call(t=9, h=4, g=2, decay=True, eps=0.3),
        "raw": Call(t=9, h=3, g=1, normalize=False, scale=0.8),
    }[setting]
    options = dict(call.options, decay=None if call.rates is None else jnp.asarray(call.rates))
    arrays = [jnp.asarray(x, jnp.float32) for x in call.arrays()]
    cotangents = [jnp.asarray(x, jnp.float32) for x in call.cotangents()]

    @jax.jit
    def run(arrays):
        def outputs(q, k, v, s, z):
            state, ys = TaylorState(s, z), []
            for i in range(4):
                y, state = taylor_attention_step(state, q[:, i], k[:, i], v[:, i], **options)
                ys.append(y)
            rest, state = taylor_attention(
                q[:, 4:], k[:, 4:], v[:, 4:], initial_state=state, return_state=True,
                implementation=implementation, **options,
            )  # fmt: skip
            return [jnp.concatenate([jnp.stack(ys, axis=1), rest], axis=1), *state]

        out, pull_back = jax.vjp(outputs, *arrays)
        return out, pull_back(cotangents)

    outputs, gradients = run(arrays)
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)


def test_steps_work_in_place():
    """Kills a step that copies the donated state: all of it is reused for the result."""
    state = empty_state(2, 4, 16, 8)
    q, k, v = (jnp.ones((2, 4, d)) for d in (16, 16, 8))
    step = jax.jit(taylor_attention_step, donate_argnums=0).lower(state, q, k, v).compile()
    assert step.memory_analysis().alias_size_in_bytes == sum(x.nbytes for x in state)


def test_decay_is_a_constant():
    """Kills a gradient into decay in some implementations and none in others."""
    q, k, v = (jnp.asarray(x, jnp.float32) for x in Call(t=20).arrays()[:3])

    @jax.jit
    def gradients(decay):
        runs = [functools.partial(value, q, k, v, implementation=name) for name in ("reference", "xla")]
        return [jax.grad(lambda d, run=run: run(decay=d))(decay) for run in runs]

    assert not np.any(gradients(np.float32([0.5, 0.9, 1.0])))


def test_errors():
    """Kills silent broadcasting of shapes that do not belong together."""
    q, k, v, s, z = (np.float32(x) for x in Call(t=3, h=4, g=2).arrays())
    with pytest.raises(ValueError, match="4 query heads must be a multiple of 3 key/value heads"):
        taylor_attention(q, q[:, :, :3], q[:, :, :3])
    with pytest.raises(ValueError, match="must share batch and time"):
        taylor_attention(q, k[:, :2], v)
    with pytest.raises(ValueError, match=r"must be \(b, t, heads, width\)"):
        taylor_attention(q[0], k, v)
    with pytest.raises(ValueError, match=r"decay of shape \(3,\) must have one entry a query head, \(4,\)"):
        taylor_attention(q, k, v, decay=np.ones(3))
    with pytest.raises(ValueError, match=r"must be s=\(1, 4, 10, 5\), z=\(1, 4, 10\); make it with empty_state"):
        taylor_attention(q, k, v, initial_state=TaylorState(s[:, :2], z[:, :2]))
    with pytest.raises(ValueError, match="chunk_size=0 must be positive"):
        taylor_attention(q, k, v, chunk_size=0)
    with pytest.raises(ValueError, match="implementation='cuda' must be one of"):
        taylor_attention(q, k, v, implementation="cuda")
    with pytest.raises(ValueError, match="3 query heads must be a multiple of 2"):
        taylor_attention_step(TaylorState(s, z), q[:, 0, :3], k[:, 0], v[:, 0])


def test_kernels_serve_the_contract():
    """Kills an adapter that mixes up arguments, and in the TPU kernels a wrong mask, carry, decay or tail, forward or
    backward: interpreted, a chunk and the rest of a second, grouped heads, decay, states in and out."""
    call = Call(t=150, h=2, g=1, k=8, v=16, decay=True, eps=0.2, scale=0.3)
    q, k, v, s, z = (jnp.asarray(x, jnp.float32) for x in call.arrays())
    dy, *dstate = (jnp.asarray(x, jnp.float32) for x in call.cotangents())
    options = api.Options(scale=0.3, eps=0.2, normalize=True, return_state=True, save_states=True, chunk_size=None)
    backend, inputs = api.BACKENDS["mosaic_tpu"], (q, k, v, TaylorState(s, z), jnp.asarray(call.rates), None)

    @jax.jit
    def run(inputs, dy, dstate):
        y, state, saved = backend.forward(*inputs, options, interpret=True)
        return [y, *state], backend.backward(*inputs, y, saved, dy, dstate, options, interpret=True)

    outputs, gradients = run(inputs, dy, TaylorState(*dstate))
    expected, expected_gradients = truth(call)
    assert_close(outputs, expected, 1e-5)
    assert_close(gradients, expected_gradients, 1e-4)
