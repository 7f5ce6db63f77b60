"""`Context.prefix` of Taylor linear attention: equation and gradients in float64, the three forms, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo import mixers
from jaxzoo.mixers import TaylorLinearAttentionConfig
from jaxzoo.mixers.base import Context
from tests.mixers.moved import assert_gradients, moved_mixer

D, LENGTH = 6, 13
DOCUMENTS = ((13,), (4, 6, 3), (1, 12))
PREFIXES = ((5,), (4, 3, 0), (1, 9))
"""Lengths of packed documents and of their prefixes: a whole document, none, longer than a chunk."""


def packed():
    """Segment ids and prefix of the rows of `DOCUMENTS`."""
    ids = [np.repeat(7 - 3 * np.arange(len(lengths)), lengths) for lengths in DOCUMENTS]
    marks = [
        np.concatenate([np.arange(n) < prefix for n, prefix in zip(*row, strict=True)])
        for row in zip(DOCUMENTS, PREFIXES, strict=True)
    ]
    return np.stack(ids).astype(np.int32), np.stack(marks)


def first(lengths):
    """Mask of the first tokens of each row."""
    return np.arange(LENGTH)[None] < np.asarray(lengths)[:, None]


def truth(config, prefix, p, x, segment_ids):
    """Outputs by the masks of the equation, head by head."""
    ids = np.zeros(x.shape[:2]) if segment_ids is None else segment_ids
    i, j = np.indices((x.shape[1],) * 2)
    both = prefix[:, :, None] & prefix[:, None, :]
    seen = (ids[:, :, None] == ids[:, None, :]) & ((j <= i)[None] | both)
    q, k, v, out = (p[f"{name}.kernel"] for name in ("q_proj", "k_proj", "v_proj", "out_proj"))
    f, width, heads = config.feature_dim, config.value_width, []
    for head in range(config.n_heads):
        shared = head // (config.n_heads // config.kv_heads)
        keys = x @ k[:, shared * f : (shared + 1) * f]
        scores = x @ q[:, head * f : (head + 1) * f] @ keys.swapaxes(1, 2) / np.sqrt(f)
        weights = np.where(seen, 1 + scores + scores**2 / 2, 0)
        y = weights @ (x @ v[:, shared * width : (shared + 1) * width])
        heads.append(y / (weights.sum(-1, keepdims=True) + config.eps) if config.normalize else y)
    return np.concatenate(heads, -1) @ out


@pytest.mark.parametrize(
    "options",
    [
        {"n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "chunk_size": 4, "eps": 0.5},
        pytest.param({"n_heads": 2, "normalize": False}, marks=pytest.mark.full),
    ],
)
def test_equation_and_gradients_of_packed_documents(options):
    """Kills: a token that is counted twice or not at all, a prefix that reads another document, tokens after the prefix
    that are seen from it, a denominator of the causal tokens alone, a group of the wrong keys."""
    config = TaylorLinearAttentionConfig(d_model=D, feature_dim=3, **options)
    mixer, p = moved_mixer(config)
    ids, prefix = packed()
    x = np.random.default_rng(0).normal(size=(3, LENGTH, D))
    assert_gradients(mixer, p, x, functools.partial(truth, config, prefix), segment_ids=ids, prefix=jnp.asarray(prefix))


def test_three_forms_agree():
    """Kills: a state without the later tokens of the prefix, a prefix that does not see the state, a state that differs
    from the causal one, steps that continue from something else."""
    config = TaylorLinearAttentionConfig(d_model=D, n_heads=2, feature_dim=3, chunk_size=4)
    mixer, p = moved_mixer(config)
    x = np.random.default_rng(1).normal(size=(3, LENGTH, D)).astype(np.float32)
    cut, lengths = 7, (7, 0, 5)

    @jax.jit
    def run(x):
        prefix = jnp.asarray(first(lengths))
        called = mixer(x, Context(prefix=prefix))
        whole, end = mixer.prefill(x, mixer.init_state(3), Context(prefix=prefix))
        head, state = mixer.prefill(x[:, :cut], mixer.init_state(3), Context(prefix=prefix[:, :cut]))
        state, tail = jax.lax.scan(lambda s, x_t: mixer.step(x_t, s)[::-1], state, x[:, cut:].swapaxes(0, 1))
        before = mixer.prefill(x[:, :3], mixer.init_state(3))[1]
        later = mixer.prefill(x[:, 3:], before, Context(prefix=jnp.asarray(first((4, 2, 0)))[:, : LENGTH - 3]))
        causal = mixer.prefill(x, mixer.init_state(3))[1]
        stepped = jnp.concatenate([head, tail.swapaxes(0, 1)], axis=1)
        return called, whole, stepped, (end, state, later[1], causal), later[0]

    called, whole, stepped, states, later = jax.tree.map(np.asarray, run(x))
    expected = truth(config, first(lengths), p, x.astype(np.float64), None)
    for found in (called, whole, stepped):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    for state in states[:-1]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), state, states[-1])
    marks = np.roll(first((4, 2, 0)), 3, axis=1) & (np.arange(LENGTH) >= 3)
    expected = truth(config, marks, p, x.astype(np.float64), None)[:, 3:]
    np.testing.assert_allclose(later, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_bfloat16_sums_are_float32():
    """Kills: denominators in bfloat16, of which 1 in 256 would be lost; an output of another dtype."""
    config = TaylorLinearAttentionConfig(d_model=D, n_heads=2, feature_dim=3)
    mixer = config.build(rngs=nnx.Rngs(0))
    x = jax.ShapeDtypeStruct((3, LENGTH, D), jnp.bfloat16)
    context = Context(prefix=jnp.asarray(first((7, 0, 5))))
    y, state = jax.eval_shape(lambda x: mixer.prefill(x, mixer.init_state(3), context), x)
    assert (y.dtype, state.s.dtype) == (jnp.bfloat16, jnp.float32)
    assert jax.eval_shape(mixer, x, context).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", sorted(mixers.MIXERS))
def test_mixers_without_a_prefix_refuse_it(name):
    """Kills: a mixer that ignores the prefix and stays causal without a word."""
    config = mixers.MIXERS[name].tiny()
    context = Context(
        prefix=jnp.ones((1, 3), bool), tokens=jnp.ones((1, 3), jnp.int32), first_values=jnp.ones((1, 3, 1))
    )
    assert not config.capabilities.prefix, "test it as TaylorLinearAttention, or let tiny() have no prefix"
    with pytest.raises(ValueError, match=r"does not honour Context\.prefix"):
        config.check_context(context)


def test_step_and_decay_refuse_a_prefix():
    """Kills: a step that ignores the prefix; a decay that grows towards later tokens, or one that is dropped."""
    with pytest.raises(ValueError, match=r"got Context\.prefix in step"):
        TaylorLinearAttentionConfig(d_model=D).check_context(Context(prefix=jnp.ones(3, bool)), streaming=True)
    config = TaylorLinearAttentionConfig(d_model=D, decay=True)
    with pytest.raises(ValueError, match=r"TaylorLinearAttention does not honour Context\.prefix"):
        config.check_context(Context(prefix=jnp.ones((1, 3), bool)))
