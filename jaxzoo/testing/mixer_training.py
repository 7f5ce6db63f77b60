"""Call and gradients of a mixer on one batch, with checks of dependence and documents."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.mixers.base import Context, Mixer, MixerConfig
from jaxzoo.testing.mixer_inputs import (
    BATCH,
    DOCUMENTS,
    HALF,
    LENGTH,
    MAX_LENGTH,
    Sequences,
    assert_close,
    build,
    documents,
    inputs,
    segment_ids,
)


class BatchRows(NamedTuple):
    """Rows of the batch of `training`."""

    whole = slice(0, BATCH)
    alone = slice(BATCH, BATCH + sum(map(len, DOCUMENTS)))
    """Each document at the start of its own row, followed by other tokens (another document for a non-causal mixer)."""
    jacobian = slice(alone.stop, alone.stop + 2 * LENGTH)
    """Sums of neighbours of the first two rows, once for each of their places."""
    futures = slice(jacobian.stop, jacobian.stop + 8)
    """First 5 tokens of the first row, then other tokens."""
    packed = slice(futures.stop, futures.stop + BATCH)
    """The rows of `whole` again, as packed documents if segments are supported."""


def batch(config: MixerConfig) -> tuple[Sequences, np.ndarray, dict[str, tuple[np.ndarray, np.float32]]]:
    """Inputs of `training`, segment ids, and the cotangents of outputs and losses per gradient."""
    stream = inputs(config)
    rows, first, stops = documents()
    places = first[:, None] + np.arange(LENGTH)[None]
    own = places < stops[:, None]
    places = np.minimum(places, LENGTH - 1)
    alone, copies = stream.at(rows[:, None], places), stream.at(np.repeat([0, 1], LENGTH), slice(None))
    copies.x[:, 1:] += copies.x[:, :-1]  # so that a filter from autocorrelations has a tap at distance 1
    others = [inputs(config, seed=seed).at([0], slice(None)) for seed in range(20, 28)]
    futures = jax.tree.map(lambda first, *rest: np.concatenate(rest), stream, *others)
    for all_rows, given in zip(futures, stream, strict=True):
        all_rows[:, :5] = given[:1, :5]
    everything = Sequences(
        *(np.concatenate(parts) for parts in zip(stream, alone, copies, futures, stream, strict=True))
    )
    ids = np.full(everything.tokens.shape, 7, np.int32)
    ids[BatchRows.packed] = segment_ids()
    if not config.capabilities.causal:
        ids[BatchRows.alone] = np.where(own, 7, 8)

    cotangent = inputs(config, seed=4).x
    y = {name: np.zeros_like(everything.x) for name in ("alone", "packed", "jacobian", "whole", "row", "losses")}
    y["alone"][BatchRows.alone] = np.where(own[..., None], cotangent[rows[:, None], places], 0)
    y["jacobian"][BatchRows.jacobian] = np.tile(np.eye(LENGTH), (2, 1))[..., None] * cotangent[0, 0]
    y["losses"][BatchRows.whole] = y["packed"][BatchRows.packed] = cotangent
    y["whole"][BatchRows.whole, : 2 * HALF] = cotangent[:, : 2 * HALF]
    y["row"][0] = cotangent[0]
    return everything, ids, {name: (dy, np.float32(name == "losses")) for name, dy in y.items()}


@functools.cache
def training(config: MixerConfig) -> dict[str, Any]:
    """Outputs, losses, and gradients of parameters and inputs of the call, with segment ids if supported; also outputs
    without segment ids, unless `step` covers them."""
    graph, params, others = nnx.split(build(config), nnx.Param, ...)
    promised, stream = config.capabilities, inputs(config)
    everything, ids, cotangents = batch(config)
    segments = {"segment_ids": jnp.asarray(ids)} if promised.segments else {}

    @jax.jit
    def run(params, everything, cotangents):
        def all_at_once(params, x):
            context = dataclasses.replace(Sequences(x, everything.tokens).context, **segments)
            return nnx.merge(graph, params, others).with_losses(x, context)

        (y, losses), pull_back = jax.vjp(all_at_once, params, everything.x)
        gradients = jax.lax.map(lambda dy: pull_back((dy[0], dict.fromkeys(losses, dy[1]))), cotangents)
        return {"y": y, "losses": losses, "gradients": gradients}

    stacked = jax.tree.map(lambda *each: np.stack(each), *cotangents.values())
    found = jax.tree.map(np.asarray, run(params, everything, stacked))
    found["gradients"] = {
        name: jax.tree.map(lambda x: x[i], found["gradients"])  # noqa: B023
        for i, name in enumerate(cotangents)
    }
    if not promised.streams or type(build(config)).with_losses is not Mixer.with_losses:
        plain = jax.jit(lambda params, stream: nnx.merge(graph, params, others)(stream.x, stream.context))
        found["call"] = np.asarray(plain(params, stream))
    return found


def check_parameters(config: MixerConfig) -> None:
    """Checks that outputs are finite, every parameter has a gradient, and losses match the config."""
    found = training(config)
    assert np.isfinite(found["y"]).all(), "outputs are not finite"
    for path, leaf in jax.tree.leaves_with_path(found["gradients"]["losses"][0]):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 1e-4, path
    assert found["losses"].keys() == config.loss_weights.keys()
    for name, loss in found["losses"].items():
        assert (loss.shape, loss.dtype) == ((), np.float32), name
        assert np.isfinite(loss), name
    if "call" in found:
        assert_close(found["y"][BatchRows.whole], found["call"], what="output of with_losses")


def check_dependence(config: MixerConfig) -> None:
    """Checks that outputs depend on the past, on the future only if promised, and on no other row.

    Token ids and selections have no derivative, so the future is also changed.
    """
    found, promised = training(config), config.capabilities
    of_two = np.abs(found["gradients"]["jacobian"][1][BatchRows.jacobian]).reshape(2, LENGTH, LENGTH, -1)
    strength = of_two.max(axis=(0, 3))  # an output of a squared ReLU can have a zero gradient
    futures, first = found["y"][BatchRows.futures, :5], found["y"][:1, :5]
    if promised.causal:
        assert np.triu(strength, 1).max() <= promised.future_rounding * strength.max(), "the future"
        same = np.broadcast_to(first, futures.shape)
        assert_close(futures, same, max(1e-5, promised.future_rounding), "outputs before another future")
    else:
        change = np.abs(futures - first).max()
        assert change > 1e-4, "no output depends on the future"
    mixed = np.tril(strength, -1).any(axis=1) if promised.selects else np.ones(LENGTH, bool)
    assert mixed[1:].any(), "no output depends on the past"
    assert np.diagonal(strength)[mixed].min() > 1e-4, "the token itself"
    if not getattr(config, "look_back", True):  # the first token of a block sees only itself
        block_size: int = vars(config)["block_size"]
        mixed[::block_size] = False
    assert np.diagonal(strength, -1)[mixed[1:]].min() > 1e-5, "the token before"

    of_row = found["gradients"]["row"][1]
    assert np.abs(of_row[0]).max() > 1e-3
    np.testing.assert_array_equal(of_row[1:], 0, err_msg="other rows")


def check_documents(config: MixerConfig) -> None:
    """Checks that packed documents give the outputs and gradients of separate documents."""
    found, (rows, first, stops) = training(config), documents()
    y, (dparams, dx) = found["y"][BatchRows.packed], found["gradients"]["packed"]
    dx = dx[BatchRows.packed]
    alone, dalone = found["y"][BatchRows.alone], found["gradients"]["alone"][1][BatchRows.alone]
    for i, (row, start, stop) in enumerate(zip(rows, first, stops, strict=True)):
        assert_close(y[row, start:stop], alone[i, : stop - start], what=f"outputs of document {i}")
        assert_close(dx[row, start:stop], dalone[i, : stop - start], 1e-4, f"gradients of document {i}")
    assert_close(dparams, found["gradients"]["alone"][0], 1e-4, "gradients of parameters")
    assert np.abs(found["y"][BatchRows.whole] - y).max() > 1e-3, "the documents do differ from one long one"


def check_dtypes(config: MixerConfig) -> None:
    """Checks, by tracing only, that outputs have the shape and dtype of the input, also in bfloat16."""
    mixer = build(config)

    def outputs(x, tokens):
        context = Context(tokens=tokens, first_values=x)
        found = [(mixer(x, context), x), (mixer.with_losses(x, context)[0], x)]
        if config.capabilities.streams:
            state = mixer.init_state(BATCH, capacity=MAX_LENGTH, dtype=x.dtype)
            now = Context(tokens=tokens[:, 0], first_values=x[:, 0])
            found += [(mixer.prefill(x, state, context)[0], x), (mixer.step(x[:, 0], state, now)[0], x[:, 0])]
        return found

    tokens = jax.ShapeDtypeStruct((BATCH, 3), jnp.int32)
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jax.ShapeDtypeStruct((BATCH, 3, config.width), dtype)
        for y, given in jax.eval_shape(outputs, x, tokens):
            assert (y.shape, y.dtype) == (given.shape, given.dtype), f"output {y} of the input {given}"
