"""Mixers compared with a token-by-token loop in float64: outputs, states and all gradients, from a random state, and
packed documents."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Context
from jaxzoo.mixers.linear.delta import DeltaState
from tests.mixers.moved import moved_mixer

T = 11
"""Tokens: odd, and no multiple of a chunk."""
DOCUMENTS = ((4, 7), (8, 3))
"""Lengths of the packed documents of each row, `T` tokens in all."""
VALUES, GRADIENTS = 1e-5, 1e-4
"""Tolerances of outputs and states, and of gradients, as shares of the largest entry."""


def paths(tree):
    """The variables of a state of Flax by dotted path."""
    return {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(tree)}


def agree(found, expected, tolerance, what):
    """Compares two trees leaf by leaf, and returns the largest error as a share of the leaf's largest entry."""
    assert jax.tree.structure(found) == jax.tree.structure(expected), what
    worst = 0.0
    for (path, leaf), truth in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        if not np.size(truth):
            continue
        scale = max(np.abs(truth).max(), 1e-3)
        error = np.abs(np.asarray(leaf, np.float64) - truth).max() / scale
        assert error <= tolerance, f"{what}{jax.tree_util.keystr(path)}: {error:.1e} of the largest entry"
        worst = max(worst, error)
    return worst


def wide(tree):
    """The tree in float64; call it where 64 bits are enabled."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64 if np.asarray(x).dtype == np.float32 else None), tree)


def compare(config, start, token, *, values=VALUES, gradients=GRADIENTS, keep=lambda state: state):
    """Asserts that the config's mixer computes the recurrence of `token`, for `T` tokens after a random state and for
    packed documents.

    Args:
      config: of the mixer.
      start: (parameters by dotted path, rows) -> the state before a document, float64.
      token: (parameters, x_t, state) -> (y_t, state), in jnp.
      values: tolerance of outputs and states.
      gradients: tolerance of gradients.
      keep: makes a random state one that can occur.
    """
    mixer, parameters = moved_mixer(config)
    graph, variables, others = nnx.split(mixer, nnx.Param, ...)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, T, config.width)).astype(np.float32)
    state = keep(jax.tree.map(lambda s: _random(rng, s), mixer.init_state(2)))
    leaves, tree = jax.tree.flatten(state)
    counts = [leaf if np.issubdtype(leaf.dtype, np.integer) else None for leaf in leaves]
    floats = [leaf for leaf, count in zip(leaves, counts, strict=True) if count is None]
    packed = rng.normal(size=(2, T, config.width)).astype(np.float32)
    ids = np.stack([np.repeat(np.arange(len(row), dtype=np.int32), row) for row in DOCUMENTS])

    def whole(floats):
        """The state with its counters, which have no derivative."""
        rest = iter(floats)
        return jax.tree.unflatten(tree, [next(rest) if count is None else jnp.asarray(count) for count in counts])

    def without_counters(y, state):
        return y, [leaf for leaf, count in zip(jax.tree.leaves(state), counts, strict=True) if count is None]

    def forms(variables, x, floats, packed):
        mixer = nnx.merge(graph, variables, others)
        streamed = without_counters(*mixer.prefill(x, whole(floats)))
        return streamed, mixer(packed, Context(segment_ids=jnp.asarray(ids)))

    def loop(parameters, x, state, ids):
        empty = start(parameters, len(x))

        def one(before, now):
            x_t, first = now
            wide = lambda s: first.reshape(-1, *[1] * (s.ndim - 1))  # noqa: E731
            before = jax.tree.map(lambda s, e: jnp.where(wide(s), e, s), before, empty)
            y, after = token(parameters, x_t, before)
            return after, y

        first = jnp.diff(ids, axis=1, prepend=ids[:, :1]) != 0
        state, y = jax.lax.scan(one, state, (x.swapaxes(0, 1), first.T))
        return y.swapaxes(0, 1), state

    def true_forms(parameters, x, floats, packed):
        """The rows of both forms together, since the loop takes long to compile."""
        states = jax.tree.map(lambda *s: jnp.concatenate(s), whole(floats), start(parameters, len(packed)))
        both_ids = jnp.concatenate([jnp.zeros_like(ids), ids])
        y, states = loop(parameters, jnp.concatenate([x, packed]), states, both_ids)
        streamed, documents = jnp.split(y, [len(x)])
        return without_counters(streamed, jax.tree.map(lambda s: s[: len(x)], states)), documents

    def both(f, *args):
        def run(args, cotangents):
            out, pull_back = jax.vjp(f, *args)
            return out, pull_back(cotangents)

        shapes = jax.eval_shape(f, *args)
        noise = np.random.default_rng(4)
        cotangents = jax.tree.map(lambda s: noise.normal(size=s.shape).astype(s.dtype), shapes)
        return jax.jit(run)(args, cotangents)

    out, (d_variables, *d_inputs) = both(forms, variables, x, floats, packed)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        given = wide((parameters, x, floats, packed))
        expected, (d_parameters, *d_expected) = jax.tree.map(np.asarray, both(true_forms, *given))
    worst = agree(out, expected, values, "output")
    known = {name: np.asarray(leaf[...]) for name, leaf in paths(d_variables).items()}
    d_parameters = {name: d_parameters[name] for name in known}
    scale = agree((known, *d_inputs), (d_parameters, *d_expected), gradients, "gradient")
    print(f"{type(config).__name__}: values {worst:.1e}, gradients {scale:.1e}")


def _random(rng, leaf):
    if np.issubdtype(leaf.dtype, np.integer):
        return np.full(leaf.shape, 3, leaf.dtype)
    return rng.normal(size=leaf.shape).astype(leaf.dtype)


def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def softplus(x):
    return jnp.log(1 + jnp.exp(x))


def unit(x):
    """Rows of length 1, as public code has them."""
    return x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def delta_start(config):
    """The empty state of a mixer of `jaxzoo/mixers/linear/delta.py`."""

    def empty(p, rows):
        channels = p["conv.taps"].shape[1]
        s = jnp.zeros((rows, config.heads, config.head_key, config.head_value))
        return DeltaState(jnp.zeros((rows, config.n_taps - 1, channels)), s)

    return empty


def delta_token(config, update, gate):
    """A token of such a mixer.

    Args:
      config: of the mixer.
      update: (p, x, h, q, k, v, S) -> (o, S) of one head of values, with all q, k and v by head, not normalized.
      gate: (p, x) -> the gate of the normalized heads, after its activation.
    """

    def token(p, x, state):
        history, s = state
        n = config.updates
        projected = jnp.concatenate([x @ p[f"{name}_proj.kernel"] for name in "qkv"], axis=-1)
        window = jnp.concatenate([history, projected[:, None]], axis=1)
        y = jnp.einsum("bwd,wd->bd", window[:, ::-1], p["conv.taps"])
        y = y * sigmoid(y)
        q, k, v = jnp.split(y, (config.keys, config.keys * (1 + n)), axis=-1)
        q = q.reshape(len(x), config.n_heads, -1)
        k, v = k.reshape(len(x), n, config.n_heads, -1), v.reshape(len(x), n, config.heads, -1)
        heads = [update(p, x, h, q, k, v, s[:, h]) for h in range(config.heads)]
        o = jnp.stack([o for o, _ in heads], axis=1)
        o = o / jnp.sqrt((o**2).mean(-1, keepdims=True) + config.norm_eps) * p["norm.scale"]
        y = o.reshape(len(x), -1) * gate(p, x)
        return y @ p["out_proj.kernel"], DeltaState(window[:, 1:], jnp.stack([s for _, s in heads], axis=1))

    return token
