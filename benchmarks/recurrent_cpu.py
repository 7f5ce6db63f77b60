"""CPU cost of the recurrent mixers compared with plain JAX forms: `python -m benchmarks.recurrent_cpu`.

Forward and backward of one layer at `--length` tokens and width `--width`; forms alternate in one process. A plain form
is the same mixer with its recurrence computed as in public JAX code, without packed documents, float32 guarantees or
sequence parallelism: token by token (`lax.scan`), by `associative_scan` (RG-LRU), or in chunks that form all scores at
once (Mamba-2's minimal form; for delta rules the WY form with one batched triangular solve), where decays per channel
divide by running products, and may overflow. Times are CPU times of the process over all threads.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.subjects import in_model
from jaxzoo.mixers import (
    DeltaNetConfig,
    GatedDeltaNetConfig,
    HGRN2Config,
    KimiDeltaAttentionConfig,
    Mamba2Config,
    MixerConfig,
    RGLRUConfig,
    RWKV6TimeMixConfig,
    RWKV7TimeMixConfig,
)
from jaxzoo.ops.delta_rule import delta_rule_step
from jaxzoo.ops.linear_attention import LinearState, linear_attention_step
from jaxzoo.utils.host_memory import keep_freed_memory

CHUNK = 64
LINEAR, DELTA = "jaxzoo.mixers.linear", "jaxzoo.mixers.linear.delta.delta_rule"


def delta_token_by_token(q: Any, k: Any, v: Any, **fields: Any) -> tuple[Any, None]:
    """`delta_rule` by a scan over tokens."""
    b, _, h, k_dim = k.shape
    tokens = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), {"q": q, "k": k, "v": v, **_given(fields)})

    def token(state: Any, now: dict) -> tuple[Any, Any]:
        y, state = delta_rule_step(state, now.pop("q"), now.pop("k"), now.pop("v"), **now)
        return state, y

    state = jnp.zeros((b, h, k_dim, v.shape[-1]), jnp.float32)
    return jax.lax.scan(token, state, tokens)[1].swapaxes(0, 1), None


def delta_all_chunks_at_once(q: Any, k: Any, v: Any, *, beta: Any, log_decay: Any = None, **_: Any) -> tuple[Any, None]:
    """The WY form, decays per head: scores and one triangular solve of all chunks at once, then a scan of states."""
    heads_first = lambda x: _chunked(x).transpose(1, 0, 3, 2, *range(4, x.ndim + 1))  # noqa: E731
    q, k, v, beta = map(heads_first, (q, k, v, beta))  # (n, b, h, c, .)
    decay = jnp.zeros(beta.shape) if log_decay is None else heads_first(log_decay)
    total = jnp.cumsum(decay, -1)
    between = jnp.exp(jnp.where(np.tri(CHUNK, dtype=bool), total[..., :, None] - total[..., None, :], -jnp.inf))
    strict = np.tri(CHUNK, k=-1, dtype=np.float32)
    system = jnp.eye(CHUNK) + beta[..., None] * jnp.einsum("nbhik,nbhjk->nbhij", k, k) * between * strict
    right = jnp.concatenate([v, k * jnp.exp(total)[..., None]], -1) * beta[..., None]
    solved = jax.lax.linalg.triangular_solve(system, right, left_side=True, lower=True, unit_diagonal=True)
    u, w = jnp.split(solved, [v.shape[-1]], -1)
    scores = jnp.einsum("nbhik,nbhjk->nbhij", q, k) * between
    to_end = jnp.exp(total[..., -1:] - total)[..., None]

    def chunk(state: Any, now: tuple) -> tuple[Any, Any]:
        q, k, u, w, scores, kept = now
        u = u - w @ state
        return kept[..., None, None] * state + jnp.swapaxes(k, -1, -2) @ u, q @ state + scores @ u

    state = jnp.zeros((*q.shape[1:3], k.shape[-1], v.shape[-1]))
    inputs = (q * jnp.exp(total)[..., None], k * to_end, u, w, scores, jnp.exp(total[..., -1]))
    return _whole(jax.lax.scan(chunk, state, inputs)[1]), None


def linear_token_by_token(q: Any, k: Any, v: Any, *, log_decay: Any, **_: Any) -> tuple[Any, Any]:
    """`linear_attention` by a scan over tokens."""
    q, k = (_repeated(x, v) for x in (q, k))
    tokens = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (q, k, v, log_decay))

    def token(state: LinearState, now: tuple) -> tuple[LinearState, Any]:
        y, state = linear_attention_step(state, *now[:3], log_decay=now[3])
        return state, y

    state = LinearState(jnp.zeros((q.shape[0], *q.shape[2:], v.shape[-1]), jnp.float32), None)
    state, y = jax.lax.scan(token, state, tokens)
    return y.swapaxes(0, 1), state


def linear_all_chunks_at_once(q: Any, k: Any, v: Any, *, log_decay: Any, **_: Any) -> tuple[Any, Any]:
    """Mamba-2's minimal form: scores of all chunks at once, then a scan of states. With decays per channel keys are
    divided by the running product."""
    q, k = (_repeated(x, v) for x in (q, k))
    heads_first = lambda x: _chunked(x).transpose(1, 0, 3, 2, *range(4, x.ndim + 1))  # noqa: E731
    q, k, v, decay = map(heads_first, (q, k, v, log_decay))
    decay = decay if decay.ndim == 5 else decay[..., None]
    total = jnp.cumsum(decay, -2)
    mask = np.tri(CHUNK, dtype=bool)
    if decay.shape[-1] == 1:
        between = jnp.exp(jnp.where(mask, total - jnp.swapaxes(total, -1, -2), -jnp.inf))
        scores = jnp.einsum("nbhik,nbhjk->nbhij", q, k) * between
    else:
        scores = jnp.where(mask, jnp.einsum("nbhik,nbhjk->nbhij", q * jnp.exp(total), k * jnp.exp(-total)), 0.0)
    written = jnp.einsum("nbhck,nbhcv->nbhkv", k * jnp.exp(total[..., -1:, :] - total), v)
    kept = jnp.exp(total[..., -1, :])[..., None]

    def chunk(state: Any, now: tuple) -> tuple[Any, Any]:
        return now[1] * state + now[0], state

    last, states = jax.lax.scan(chunk, jnp.zeros(written.shape[1:]), (written, kept))
    y = scores @ v + (q * jnp.exp(total)) @ states
    return _whole(y), LinearState(last, None)


def diagonal_associative(tokens: Any, coefficients: Any, readout: Any, state: Any, **_: Any) -> tuple[Any, Any]:
    """`diagonal_scan` by `jax.lax.associative_scan`."""
    a, b = coefficients(tokens)
    combine = lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1])  # noqa: E731
    h = jax.lax.associative_scan(combine, (a, b), axis=1)[1]
    return readout(h, tokens), h[:, -1]


def diagonal_token_by_token(tokens: Any, coefficients: Any, readout: Any, state: Any, **_: Any) -> tuple[Any, Any]:
    """`diagonal_scan` by a scan over tokens."""
    a, b = (jnp.swapaxes(x, 0, 1) for x in coefficients(tokens))

    def token(h: Any, now: tuple) -> tuple[Any, Any]:
        h = now[0] * h + now[1]
        return h, h

    last, h = jax.lax.scan(token, state, (a, b))
    return readout(h.swapaxes(0, 1), tokens), last


def _repeated(x: Any, v: Any) -> Any:
    """Repeats queries or keys of groups for each head of the group."""
    return jnp.repeat(x, v.shape[2] // x.shape[2], axis=2)


def _given(fields: dict) -> dict:
    return {name: x for name, x in fields.items() if x is not None and name in ("beta", "removal", "log_decay")}


def _chunked(x: Any) -> Any:
    return x.reshape(x.shape[0], -1, CHUNK, *x.shape[2:])


def _whole(y: Any) -> Any:
    """(n, b, h, c, v) -> (b, t, h, v)."""
    return y.transpose(1, 0, 3, 2, 4).reshape(y.shape[1], -1, y.shape[2], y.shape[4])


TOKEN_BY_TOKEN, AT_ONCE = "token by token", "all chunks at once"
LINEAR_FORMS = {TOKEN_BY_TOKEN: linear_token_by_token, AT_ONCE: linear_all_chunks_at_once}
DELTA_FORMS = {TOKEN_BY_TOKEN: delta_token_by_token, AT_ONCE: delta_all_chunks_at_once}
DELTA_BY_TOKEN = {TOKEN_BY_TOKEN: delta_token_by_token}
DIAGONAL_FORMS = {TOKEN_BY_TOKEN: diagonal_token_by_token, "associative scan": diagonal_associative}
BONUS = "jaxzoo.ops.bonus_linear_attention.linear_attention"
SUBJECTS: dict[str, tuple[MixerConfig, str, dict[str, Callable]]] = {
    "delta_net": (DeltaNetConfig(n_heads=4), DELTA, DELTA_FORMS),
    "gated_delta_net": (GatedDeltaNetConfig(n_heads=4), DELTA, DELTA_FORMS),
    "kimi_delta_attention": (KimiDeltaAttentionConfig(n_heads=4), DELTA, DELTA_BY_TOKEN),
    "rwkv7_time_mix": (RWKV7TimeMixConfig(n_heads=4), f"{LINEAR}.rwkv7.delta_rule", DELTA_BY_TOKEN),
    "mamba2": (Mamba2Config(), "jaxzoo.mixers.ssm.mamba2.linear_attention", LINEAR_FORMS),
    "hgrn2": (HGRN2Config(n_heads=4), f"{LINEAR}.hgrn2.linear_attention", LINEAR_FORMS),
    "rwkv6_time_mix": (RWKV6TimeMixConfig(n_heads=4), BONUS, LINEAR_FORMS),
    "rg_lru": (RGLRUConfig(n_heads=4), "jaxzoo.mixers.ssm.rg_lru.diagonal_scan", DIAGONAL_FORMS),
}
"""For each mixer its config, the op that plain forms replace, and the plain forms."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--calls", type=int, default=5, help="timed calls of each form")
    parser.add_argument("--only", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--out", type=Path, help="JSON file; default: none")
    options = parser.parse_args(argv)
    keep_freed_memory()
    rows = {}
    for name in options.only:
        config, target, forms = SUBJECTS[name]
        rows[name] = _measure(config, target, forms, options.length, options.width, options.calls)
        best = min(time for form, time in rows[name].items() if form != "ours")
        shown = ", ".join(f"{form} {time:.0f}" for form, time in rows[name].items())
        print(f"{name}: {shown} CPU ms; ours / fastest = {rows[name]['ours'] / best:.2f}", flush=True)
    if options.out:
        sizes = {"length": options.length, "width": options.width, "batch": 1, "jax": jax.__version__}
        where = {"device": f"{platform.machine()} CPU, {os.cpu_count()} cores", "date": time.strftime("%Y-%m-%d")}
        facts = {**sizes, **where, "cpu_ms": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def _measure(
    config: MixerConfig, target: str, forms: dict[str, Callable], length: int, width: int, calls: int
) -> dict[str, float]:
    """Returns the median CPU ms of forward and backward by form, measured in turns; checks values against ours."""
    mixer = in_model(config, width, length).build(rngs=nnx.Rngs(0))
    graph, parameters, others = nnx.split(mixer, nnx.Param, ...)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, length, width)), jnp.float32)

    def loss(parameters: Any, x: Any) -> Any:
        return jnp.square(nnx.merge(graph, parameters, others)(x)).sum()

    compiled = {}
    for form, function in {"ours": None, **forms}.items():
        with _replaced(target, function):
            compiled[form] = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(parameters, x).compile()
    values = {form: float(call(parameters, x)[0]) for form, call in compiled.items()}
    for form, value in values.items():
        if not abs(value / values["ours"] - 1) < 1e-3:
            print(f"  {form}: another value, {value:.6g} for {values['ours']:.6g}", file=sys.stderr)
    times: dict[str, list[float]] = {form: [] for form in compiled}
    for _ in range(calls):
        for form, call in compiled.items():
            start = time.process_time()
            jax.block_until_ready(call(parameters, x))
            times[form].append(1e3 * (time.process_time() - start))
    return {form: statistics.median(each) for form, each in times.items()}


@contextlib.contextmanager
def _replaced(target: str, function: Callable | None) -> Iterator[None]:
    with mock.patch(target, function) if function else contextlib.nullcontext():
        yield


if __name__ == "__main__":
    sys.exit(main())
