"""One layer on this device: `python -m benchmarks.layers --mixer mamba2`; see `--help`.

Forward, forward and backward of a batch in bfloat16, and one decode step. Parameters are float32 and cast in every
call, as in training. With `--peer` the layer of flash-linear-attention (`layers_fla.py`) is measured in its place.
All programs compile, then the process waits for its turn (`turns.py`), before anything is timed.
"""

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks import host_parameters, layers_fla
from benchmarks.subjects import in_model, subjects
from benchmarks.turns import wait_for_turn
from jaxzoo.mixers import Context, Mixer, MixerConfig
from pallas_kernels.benchmark import timing

STEPS = 128
"""Decode steps per timed program."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.layers", description=__doc__)
    add = parser.add_argument
    add("--mixer", required=True, choices=subjects(), metavar="NAME", help="name in the registry")
    add("--peer", action="store_true", help="the layer of flash-linear-attention in its place")
    add("--batch", type=int, default=4, help="sequences; default: 4")
    add("--length", type=int, default=2048, help="tokens, and the capacity of growing states; default: 2048")
    add("--width", type=int, default=1024, help="d_model; default: 1024")
    add("--heads", type=int, default=16, help="heads, where a mixer has them; default: 16")
    add("--streams", nargs="+", type=int, default=[1, 128], metavar="N", help="batches of a decode step")
    add("--seconds", type=float, default=0.2, help="time of a measurement; default: 0.2")
    add("--out", type=Path, default=Path("layer.json"), metavar="FILE", help="result")
    options = parser.parse_args(argv)
    start = time.monotonic()
    row, programs = (layers_fla.prepare if options.peer else prepare)(options)
    row["compile_s"] = round(time.monotonic() - start, 1)
    wait_for_turn()
    for name, (make, tokens) in programs.items():
        try:
            batch = make()
            batch(1)
            found = timing.measure(batch, seconds=options.seconds, repeats=10)
        except RuntimeError as error:  # no memory, or a pass that a peer refuses
            row[name] = {"failed": str(error).strip().split("\n")[0][:300]}
        else:
            times = {f"{key}_ms": 1e3 * getattr(found, key) for key in ("median", "p10", "p90")}
            row[name] = {**times, "tokens_per_s": tokens / found.median}
        options.out.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))
    return 0


def prepare(options: argparse.Namespace) -> tuple[dict[str, Any], layers_fla.Programs]:
    config = layer_config(options)
    graph, *states = nnx.split(nnx.eval_shape(lambda: config.build(rngs=nnx.Rngs(0))), nnx.Param, ...)
    params, others = (nnx.to_pure_dict(state) for state in states)
    x = jax.ShapeDtypeStruct((options.batch, options.length, options.width), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct(x.shape[:2], jnp.int32)

    def module(params: Any, others: Any) -> Mixer:
        return nnx.merge(graph, nnx.State(params), nnx.State(others))

    def forward(params: Any, others: Any, x: jax.Array, ids: jax.Array) -> jax.Array:
        return module(params, others)(x, Context(tokens=ids))

    def loss(params: Any, x: jax.Array, others: Any, ids: jax.Array, weights: jax.Array) -> jax.Array:
        y, losses = module(params, others).with_losses(x, Context(tokens=ids))
        return sum(losses.values(), jnp.sum((y * weights).astype(jnp.float32)))

    def start(params: Any, others: Any, batch: int) -> Any:
        return module(params, others).init_state(batch, capacity=options.length, dtype=x.dtype)

    def decode(params: Any, others: Any, xs: jax.Array, ids: jax.Array, state: Any) -> Any:
        def step(state: Any, inputs: tuple) -> Any:
            y, state = module(params, others).step(inputs[0], state, Context(tokens=inputs[1]))
            return state, y

        return jax.lax.scan(step, state, (xs, ids))

    programs: dict[str, tuple[Callable, tuple, int]] = {
        "forward": (forward, (params, others, x, ids), ids.size),
        "gradients": (jax.grad(loss, argnums=(0, 1)), (params, x, others, ids, x), ids.size),
    }
    starts: dict[str, Any] = {}
    for batch in options.streams if config.capabilities.streams else ():
        first = jax.jit(functools.partial(start, batch=batch))
        starts[f"decode {batch}"] = first.lower(params, others).compile()
        xs = jax.ShapeDtypeStruct((STEPS, batch, options.width), x.dtype)
        tokens = jax.ShapeDtypeStruct(xs.shape[:2], ids.dtype)
        state = jax.eval_shape(first, params, others)
        programs[f"decode {batch}"] = (decode, (params, others, xs, tokens, state), tokens.size)
    compiled = {name: jax.jit(f).lower(*shapes).compile() for name, (f, shapes, _) in programs.items()}

    def make(name: str) -> layers_fla.Batch:
        call, inputs = compiled[name], list(host_parameters.draw(programs[name][1]))
        if name in starts:
            inputs[-1] = starts[name](*inputs[:2])
            inputs[-1] = call(*inputs)[0]  # a state that has read tokens

        def batch(n: int) -> float:
            begin, outputs = time.perf_counter(), None
            for _ in range(n):
                outputs = call(*inputs)
            jax.block_until_ready(outputs)
            return time.perf_counter() - begin

        return batch

    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    temporary: dict[str, Any] = {name: each.memory_analysis() for name, each in compiled.items()}
    row = {"mixer": options.mixer, "parameters": count, "config": str(config)}
    row["temporary_bytes"] = {name: each.temp_size_in_bytes for name, each in temporary.items()}
    return row, {name: (functools.partial(make, name), tokens) for name, (_, _, tokens) in programs.items()}


def layer_config(options: argparse.Namespace) -> MixerConfig:
    config = subjects()[options.mixer]
    known = {field.name for field in dataclasses.fields(config)}
    heads = {"n_heads": options.heads, "head_dim": options.width // options.heads}
    config = dataclasses.replace(config, **{name: value for name, value in heads.items() if name in known})
    return in_model(config, options.width, options.length)


if __name__ == "__main__":
    raise SystemExit(main())
