"""The Mosaic TPU kernels, forward and backward, interpreted on CPU against the float64 quadratic form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.taylor_attention import mosaic_tpu, mosaic_tpu_vjp
from pallas_kernels.taylor_attention.mosaic_tpu_layout import head_group, make_geometry
from pallas_kernels.taylor_attention.state import TaylorState
from tests.pallas_kernels.shared import full, relative_l2, slow
from tests.pallas_kernels.taylor_attention.oracle import make_case, oracle, oracle_gradients

# What a block reads beyond its array is then NaN, as it may be on the device.
NAN_MEMORY = pltpu.InterpretParams(uninitialized_memory="nan")
# float32: sums of up to 300 terms at 2^-24. bfloat16: five roundings of 2^-9 (phi or p, state, dy~, ds, the
# output itself) of random sign give 3e-3; measured 2e-3 to 4e-3, and a factor 2.5 of room.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2}


def run(case, dtype, *, scale, normalize, chunk, backward_chunk, interpret):
    """y, s, z, and the cotangents by name; two chunks a grid step."""

    def cast(x, to=dtype):
        return jnp.asarray(x, jnp.float32).astype(to)

    def sums(s, z):
        return None if s is None else TaylorState(cast(s, jnp.float32), cast(z, jnp.float32))

    def pack(x):
        return cast(x).reshape(*x.shape[:2], -1)

    options = {
        "h": case.q.shape[2], "scale": scale, "normalize": normalize, "interpret": interpret,
        "decay": None if case.decay is None else jnp.asarray(case.decay),
    }  # fmt: skip

    @jax.jit
    def value_and_gradients(q, k, v, state, dy, dstate):
        y, final, den = mosaic_tpu.forward(
            q, k, v, initial_state=state, return_state=True, return_den=normalize, chunk_size=chunk,
            block_size=2 * chunk, **options,
        )  # fmt: skip
        gradients = mosaic_tpu_vjp.backward(
            q, k, v, y, den, dy, initial_state=state, dstate=dstate, chunk_size=backward_chunk,
            block_size=2 * backward_chunk, **options,
        )  # fmt: skip
        return y, final, gradients

    q, k, v, dy = (pack(x) for x in (case.q, case.k, case.v, case.dy))
    y, final, gradients = value_and_gradients(q, k, v, sums(case.s, case.z), dy, sums(case.ds, case.dz))
    named = {name: getattr(gradients, name).reshape(getattr(case, name).shape) for name in "qkv"}
    if gradients.initial_state is not None:
        named |= gradients.initial_state._asdict()
    return (y.reshape(case.v.shape), *final), named


def check(shape, dtype, *, scale=None, normalize=True, chunk=64, backward_chunk=None, rates=None, **options):
    """Values, states and gradients of a random call within `TOLERANCE` of the truth; `rates`: a decay for each head."""
    interpret, (b, t, h, k, v) = options.pop("interpret", True), shape
    case, scale = make_case(b, t, h, k, v, dtype, **options), k**-0.5 if scale is None else scale
    if rates is not None:
        case = case._replace(decay=np.asarray(rates, np.float32))
    truth = oracle(*case[:5], decay=case.decay, scale=scale, normalize=normalize)[:3]
    how = {"chunk": chunk, "backward_chunk": backward_chunk or chunk, "interpret": interpret}
    outputs, gradients = run(case, dtype, scale=scale, normalize=normalize, **how)
    expected = oracle_gradients(case, scale=scale, normalize=normalize)
    assert outputs[0].dtype == dtype
    assert outputs[1].dtype == jnp.float32
    errors = {f"out{i}": relative_l2(x, y) for i, (x, y) in enumerate(zip(outputs, truth, strict=True))}
    errors |= {f"d{name}": relative_l2(x, expected[name]) for name, x in gradients.items()}
    assert expected.keys() == gradients.keys()
    assert max(errors.values()) < TOLERANCE[jnp.dtype(dtype).name], errors


@pytest.mark.parametrize("t", [*map(slow, [1, 63, 64, 127, 129, 300])])
def test_values_states_and_gradients(t):
    """Kills: a wrong carry, mask or tail, in either direction, also of a block of 1 token; a den cut for the forward
    chunk."""
    check((2, t, 3, 16, 64), jnp.float32, backward_chunk=48)


@pytest.mark.slow
@pytest.mark.parametrize(("t", "decay"), [full(1, False), full(100, True), slow(200, False)])
def test_what_lies_beyond_the_array_does_not_leak(t, decay):
    """Kills: a ragged tail masked by multiplication, which turns NaN into NaN."""
    check((1, t, 2, 16, 64), jnp.float32, interpret=NAN_MEMORY, decay=decay)


@pytest.mark.slow
@pytest.mark.parametrize("decay", [full(True), slow(False)])
def test_bfloat16(decay):
    """Kills: an accumulator or a carried state of bfloat16. v has a mean, as after any trained projection."""
    check((1, 150, 1, 16, 64), jnp.bfloat16, decay=decay, v_mean=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("decay", "normalize", "state"), [slow(1, 1, 1), slow(1, 0, 1), full(0, 0, 0), slow(0, 1, 0)])
def test_decay_without_normalizer_without_state(decay, normalize, state):
    """Kills: a decay applied once too often across a chunk or in the short last one; refs mixed up."""
    check((1, 150, 2, 16, 64), jnp.float32, decay=bool(decay), normalize=bool(normalize), state=bool(state))


@pytest.mark.slow
def test_decay_of_zero_and_one():
    """Kills: log 0 = -inf, whose product with a zero exponent is NaN; the decay of a neighbour."""
    check((1, 40, 3, 8, 16), jnp.float32, chunk=32, rates=[0.0, 1.0, 0.5])


@pytest.mark.slow
@pytest.mark.parametrize("scale", [slow(-0.7), full(0.0), slow(3.0), slow(1e10), slow(1e-10)])
def test_scales(scale):
    """Kills: 1 / scale of 0, a square of it that leaves float32, a sign lost in the square."""
    check((1, 40, 2, 8, 16), jnp.float32, chunk=32, scale=scale)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("h", "k", "v"),
    [full(3, 24, 40), slow(2, 24, 96), slow(3, 32, 128), slow(8, 16, 112), slow(17, 8, 32), slow(9, 24, 8)],
)
def test_head_dims_and_head_padding(h, k, v):
    """Kills: lanes of a head cut at the wrong place, also across tiles; 17 heads run as 32, of which 15 are padding."""
    check((1, 40, h, k, v), jnp.float32, chunk=32)


@pytest.mark.slow
@pytest.mark.parametrize(("h", "k", "v"), [(3, 24, 40), (5, 8, 8), (2, 32, 96)])
def test_head_dims_of_bfloat16(h, k, v):
    """Kills: heads that begin within a tile of 16 rows read from its start."""
    check((1, 40, h, k, v), jnp.bfloat16, chunk=32, decay=True)


@pytest.mark.slow
def test_several_head_groups_read_their_own_constants():
    """Kills: decay of the first group used for the second."""
    check((1, 33, 16, 16, 64), jnp.float32, chunk=32, decay=True)


@pytest.mark.slow
def test_den_is_the_row_sum():
    case = make_case(2, 100, 3, 16, 32, jnp.float32, decay=True)
    q, k, v = (jnp.asarray(x, jnp.float32).reshape(2, 100, -1) for x in case[:3])
    state = TaylorState(jnp.asarray(case.s, jnp.float32), jnp.asarray(case.z, jnp.float32))
    y, final, den = mosaic_tpu.forward(
        q, k, v, h=3, scale=0.25, initial_state=state, decay=jnp.asarray(case.decay), return_den=True,
        chunk_size=48, interpret=True,
    )  # fmt: skip
    truth = oracle(*case[:5], decay=case.decay, scale=0.25)
    assert final is None
    assert relative_l2(y.reshape(truth[0].shape), truth[0]) < 1e-5
    assert relative_l2(den.transpose(0, 2, 1), truth[3]) < 1e-5


@pytest.mark.slow
def test_vmap_and_scan_over_segments_equal_one_call():
    """Kills: a program id that vmap shifts; a state that does not continue."""
    case = make_case(2, 64, 2, 16, 32, jnp.float32)
    q, k, v, s, z = (jnp.asarray(x, jnp.float32) for x in case[:5])
    q, k, v = (x.reshape(2, 64, -1) for x in (q, k, v))

    def attend(q, k, v, state):
        return mosaic_tpu.forward(
            q, k, v, h=2, scale=0.25, initial_state=state, return_state=True, chunk_size=32, interpret=True
        )[:2]

    whole, final = attend(q, k, v, TaylorState(s, z))

    def segment(state, qkv):
        q, k, v = qkv
        y, state = attend(q[None], k[None], v[None], state)
        return state, y[0]

    def one(q, k, v, s, z):
        segments = tuple(x.reshape(2, 32, -1) for x in (q, k, v))
        state, y = jax.lax.scan(segment, TaylorState(s[None], z[None]), segments)
        return y.reshape(64, -1), state.s[0]

    y, last = jax.vmap(one)(q, k, v, s, z)
    assert relative_l2(y, np.asarray(whole)) < 1e-6
    assert relative_l2(last, np.asarray(final.s)) < 1e-6


@pytest.mark.full
def test_head_groups():
    assert [head_group(h, 16, 64) for h in (8, 16, 12, 3, 20)] == [8, 8, 12, 3, 8]
    assert [head_group(16, k, 64) for k in (8, 24, 32)] == [16, 16, 4]
    assert head_group(16, 32, 112) == 8


@pytest.mark.full
def test_blocks_share_out_the_chunks():
    """Kills: 5 chunks as blocks of 4, the second of which is 3 chunks of nothing; a block beyond the memory."""

    def block(t, *, v=64, dtype="bfloat16"):
        q, v = (jax.ShapeDtypeStruct((1, t, 8 * width), dtype) for width in (16, v))
        options = {"h": 8, "scale": 1.0, "eps": 0.0, "normalize": True, "chunk_size": 128, "block_size": 512}
        return make_geometry(q, q, v, **options).block

    assert [block(t) for t in (1, 128, 129, 512, 640, 8192)] == [128, 128, 256, 512, 384, 512]
    assert block(8192, v=128, dtype="float32") == 256


REFUSED = [
    (((1, 8, 24), (1, 8, 64)), "float32", {"h": 2}, NotImplementedError, r"key dim k=12 .*'xla'"),
    (((1, 8, 32), (1, 8, 272)), "float32", {"h": 2}, NotImplementedError, "value dim v=136 is not"),
    (((1, 8, 32), (1, 8, 64)), "float16", {"h": 2}, NotImplementedError, "dtype=float16 is neither"),
    (((1, 8, 32), (1, 8, 64)), "float32", {"h": 3}, ValueError, "h=3 must divide the last dimensions"),
    (((1, 0, 32), (1, 0, 64)), "float32", {"h": 2}, ValueError, "t=0 must be at least 1"),
    (((1, 8, 32), (1, 9, 64)), "float32", {"h": 2}, ValueError, r"v \(1, 9, 64\) must be"),
    (((1, 8, 32), (1, 8, 64)), "float32", {"h": 2, "chunk_size": 40}, ValueError, "chunk_size=40"),
    (((1, 200, 32), (1, 200, 64)), "float32", {"h": 2, "chunk_size": 64}, ValueError, "of 128 on a TPU"),
]


def test_errors_name_argument_received_and_rule():
    for shapes, dtype, kwargs, error, match in REFUSED:
        q, v = (np.zeros(shape, dtype) for shape in shapes)
        with pytest.raises(error, match=match):
            mosaic_tpu.forward(q, q, v, scale=1.0, **kwargs)


def test_state_and_decay_of_wrong_shape_are_refused():
    q, v = np.zeros((1, 8, 32), np.float32), np.zeros((1, 8, 64), np.float32)
    with pytest.raises(ValueError, match=r"decay \(3,\) must be \(h,\) = \(2,\)"):
        mosaic_tpu.forward(q, q, v, h=2, scale=1.0, decay=np.ones(3), interpret=True)
    state = TaylorState(np.zeros((1, 2, 153, 32)), np.zeros((1, 2, 9)))
    with pytest.raises(ValueError, match=r"z \(1, 2, 9\) must be"):
        mosaic_tpu.forward(q, q, v, h=2, scale=1.0, initial_state=state, interpret=True)
