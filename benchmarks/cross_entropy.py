"""Head and cross-entropy with gradients, next to tokamax's: `python -m benchmarks.cross_entropy`; see `--help`.

Features (rows, width) in bfloat16 (on a CPU float32), a float32 table (vocabulary, width), random targets. Compared:
`jaxzoo.train.loss` in chunks, and `tokamax.linear_softmax_cross_entropy_loss`, if it is installed, of the table cast to
the features' dtype. A time is reported only of a form whose loss and gradients agree with float32 logits on some rows.
"""

import argparse
import functools
import importlib
import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.turns import wait_for_turn
from jaxzoo.train import loss
from pallas_kernels.benchmark import timing

CHECKED = 512
"""Rows that are compared with float32 logits."""
TOLERANCE = 2e-2
"""Relative L2 error of the gradients; bfloat16 rounds the cotangents of logits by 2^-9 each."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.cross_entropy", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=32_768, help="targets; default: 32,768")
    add("--width", type=int, default=1024, help="width of the features; default: 1,024")
    add("--vocabulary", type=int, default=50_304, help="rows of the table; default: 50,304")
    add("--seconds", type=float, default=2.0, help="time of each form; default: 2")
    add("--out", type=Path, default=Path("cross_entropy.json"), metavar="FILE", help="result")
    options = parser.parse_args(argv)
    arrays = inputs(options.rows, options.width, options.vocabulary)
    forms = {name: jax.jit(jax.value_and_grad(form, (0, 1))) for name, form in known().items()}
    for form in forms.values():
        jax.block_until_ready(form(*arrays))
    wait_for_turn()
    shape = {"rows": options.rows, "width": options.width, "vocabulary": options.vocabulary}
    report = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, **shape}
    report |= {name: measured(form, arrays, options.seconds) for name, form in forms.items()}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


def inputs(rows: int, width: int, vocabulary: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Features, table and targets; logits have a standard deviation of 1."""
    keys = jax.random.split(jax.random.key(0), 3)
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    features = jax.random.normal(keys[0], (rows, width), dtype)
    table = width**-0.5 * jax.random.normal(keys[1], (vocabulary, width), jnp.float32)
    return features, table, jax.random.randint(keys[2], (rows,), 0, vocabulary)


def ours(features: jax.Array, table: jax.Array, targets: jax.Array, *, chunk: int) -> jax.Array:
    """Sum of the losses by jaxzoo."""
    n = features.shape[0]
    head = loss._Head(chunk=min(chunk, n), n_outputs=table.shape[0], soft_cap=0.0)
    return loss._sums(features[None], table, targets[None], head)[0]


def exact(features: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
    """Sum of the losses by float32 logits of the table as rounded to bfloat16."""
    rounded = table.astype(features.dtype).astype(jnp.float32)
    logits = jnp.matmul(features.astype(jnp.float32), rounded.T, precision=jax.lax.Precision.HIGHEST)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1)
    return -jnp.sum(picked)


def known() -> dict[str, Callable[..., jax.Array]]:
    """Forms by name."""
    found: dict[str, Callable[..., jax.Array]] = {
        f"jaxzoo, chunks of {chunk}": functools.partial(ours, chunk=chunk) for chunk in (2048, 4096, 8192)
    }
    if importlib.util.find_spec("tokamax") is not None:
        found["tokamax"] = _tokamax
    return found


def _tokamax(features: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
    tokamax: Any = importlib.import_module("tokamax")
    return tokamax.linear_softmax_cross_entropy_loss(features, targets, table.astype(features.dtype).T)


def measured(form: Any, arrays: tuple, seconds: float) -> dict[str, Any]:
    """Error of the gradients, and, if it is small, milliseconds and temporary bytes of loss and gradients."""
    features, table, targets = arrays
    some = features[:CHECKED], table, targets[:CHECKED]
    (value, found), (true_value, truth) = form(*some), jax.jit(jax.value_and_grad(exact, (0, 1)))(*some)
    error = max(_relative_l2(x, y) for x, y in zip((value, *found), (true_value, *truth), strict=True))
    if not error < TOLERANCE:
        return {"error": error}

    def run(n: int) -> float:
        start, result = time.perf_counter(), None
        for _ in range(n):
            result = form(*arrays)
        jax.block_until_ready(result)
        return time.perf_counter() - start

    run(1)
    temporary = form.lower(*arrays).compile().memory_analysis().temp_size_in_bytes
    times = timing.measure(run, seconds=seconds, repeats=10).milliseconds
    return {"error": error, "temporary_bytes": temporary, **times}


def _relative_l2(x: jax.Array, truth: jax.Array) -> float:
    x, truth = x.astype(jnp.float32), truth.astype(jnp.float32)
    return float(jnp.linalg.norm(jnp.ravel(x - truth)) / jnp.linalg.norm(jnp.ravel(truth)))


if __name__ == "__main__":
    raise SystemExit(main())
