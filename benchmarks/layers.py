"""One layer on this device: `python -m benchmarks.layers --mixer mamba2`; see `--help`.

Forward, forward and backward of a batch in bfloat16, and one decode step. Parameters are float32 and cast in every
call, as in training. With `--peer` the layer of flash-linear-attention (`layers_fla.py`) is measured in its place.
All programs compile, then the process waits for its turn (`turns.py`), before anything is timed.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.turns import wait_for_turn
from jaxzoo.cli.runner import make_main
from jaxzoo.config.checked import Checked, PositiveFloat, PositiveInt

STEPS = 128
"""Tokens of the timed decoding, one after the other in one program."""
Batch = Callable[[int], float]
"""Seconds of so many calls of a program."""
Prepared = dict[str, tuple[Callable[[], Batch], int]]
"""By measurement: a function that makes the inputs, and the number of tokens of a call."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Checked):
    """Measures one layer on the first device."""

    mixer: str
    """Name in the registry."""
    peer: bool = False
    """Measures the layer of flash-linear-attention in its place."""
    batch: PositiveInt = 4
    """Sequences."""
    length: PositiveInt = 2048
    """Tokens of a sequence, and the capacity of growing states."""
    width: PositiveInt = 1024
    """d_model."""
    heads: PositiveInt = 16
    """Heads, where a mixer has them."""
    streams: tuple[PositiveInt, ...] = (1, 128)
    """Batch sizes of the decode step."""
    seconds: PositiveFloat = 0.2
    """Time of each measurement."""
    out: Path = Path("layer.json")
    """File of the result."""


def _measure(command: Command) -> None:
    from pallas_kernels.benchmark import timing

    start = time.monotonic()
    if command.peer:
        from benchmarks.layers_fla import prepare
    else:
        prepare = _prepare
    row, prepared = prepare(command)
    row["compile_s"] = round(time.monotonic() - start, 1)
    wait_for_turn()
    for name, (make, tokens) in prepared.items():
        try:
            batch = make()
            batch(1)
            found = timing.measure(batch, seconds=command.seconds, repeats=10)
        except RuntimeError as error:  # no memory, or a pass that a peer refuses
            row[name] = {"failed": str(error).strip().split("\n")[0][:300]}
        else:
            times = {f"{key}_ms": 1e3 * getattr(found, key) for key in ("median", "p10", "p90")}
            row[name] = {**times, "tokens_per_s": tokens / found.median}
        command.out.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))


def _prepare(command: Command) -> tuple[dict[str, Any], Prepared]:
    """The compiled programs of one of our mixers."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from benchmarks import host_parameters
    from jaxzoo.mixers import Context, Mixer

    config = layer_config(command)
    abstract = nnx.eval_shape(lambda: config.build(rngs=nnx.Rngs(0)))
    graph, *states = nnx.split(abstract, nnx.Param, ...)
    params, others = (nnx.to_pure_dict(state) for state in states)
    x = jax.ShapeDtypeStruct((command.batch, command.length, command.width), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct(x.shape[:2], jnp.int32)

    def module(params: Any, others: Any) -> Mixer:
        return nnx.merge(graph, nnx.State(params), nnx.State(others))

    def forward(params: Any, others: Any, x: jax.Array, ids: jax.Array) -> jax.Array:
        return module(params, others)(x, Context(tokens=ids))

    def loss(params: Any, x: jax.Array, others: Any, ids: jax.Array, weights: jax.Array) -> jax.Array:
        y, losses = module(params, others).with_losses(x, Context(tokens=ids))
        return sum(losses.values(), jnp.sum((y * weights).astype(jnp.float32)))

    def decode(params: Any, others: Any, xs: jax.Array, ids: jax.Array, state: Any) -> Any:
        mixer = module(params, others)

        def step(state: Any, inputs: tuple) -> Any:
            y, state = mixer.step(inputs[0], state, Context(tokens=inputs[1]))
            return state, y

        return jax.lax.scan(step, state, (xs, ids))

    gradients = jax.grad(loss, argnums=(0, 1))
    programs: dict[str, tuple[Callable, tuple]] = {
        "forward": (forward, (params, others, x, ids)),
        "gradients": (gradients, (params, x, others, ids, x)),
    }
    starts: dict[str, Any] = {}
    for b in command.streams if config.capabilities.streams else ():
        name, xs = f"decode {b}", jax.ShapeDtypeStruct((STEPS, b, command.width), x.dtype)

        def start(params: Any, others: Any, b: int = b) -> Any:
            return module(params, others).init_state(b, capacity=command.length, dtype=x.dtype)

        starts[name] = jax.jit(start).lower(params, others).compile()
        state = jax.eval_shape(start, params, others)
        programs[name] = (decode, (params, others, xs, jax.ShapeDtypeStruct(xs.shape[:2], ids.dtype), state))
    compiled = {name: jax.jit(f).lower(*shapes).compile() for name, (f, shapes) in programs.items()}

    def run(name: str) -> Batch:
        inputs = host_parameters.draw(programs[name][1])
        if name in starts:
            inputs = (*inputs[:-1], starts[name](*inputs[:2]))
            inputs = (*inputs[:-1], compiled[name](*inputs)[0])  # after some tokens: no zeros
        call = compiled[name]

        def batch(n: int) -> float:
            begin = time.perf_counter()
            outputs = None
            for _ in range(n):
                outputs = call(*inputs)
            jax.block_until_ready(outputs)
            return time.perf_counter() - begin

        return batch

    count = sum(x.size for x in jax.tree.leaves(params))
    temporary = {name: _temporary_bytes(each) for name, each in compiled.items()}
    facts = {"mixer": command.mixer, "parameters": count, "config": str(config), "temporary_bytes": temporary}
    tokens = dict.fromkeys(programs, command.batch * command.length)
    tokens |= {f"decode {b}": b * STEPS for b in command.streams}
    return facts, {
        name: (functools.partial(run, name), tokens.get(name, command.batch * command.length)) for name in programs
    }


def _temporary_bytes(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def layer_config(command: Command) -> Any:
    """The mixer as a model of this width has it, with so many heads where it has any."""
    from benchmarks.subjects import in_model, subjects

    config = subjects()[command.mixer]
    known = {field.name for field in dataclasses.fields(config)}
    heads = {"n_heads": command.heads, "head_dim": command.width // command.heads}
    config = dataclasses.replace(config, **{name: value for name, value in heads.items() if name in known})
    return in_model(config, command.width, command.length)


main = make_main(Command, _measure, prog="python -m benchmarks.layers")

if __name__ == "__main__":
    raise SystemExit(main())
