"""CPU cost of one mixer: forward and backward of t tokens, and one decode step after them.

Memory is kept from call to call, as our trainer does.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.peer_process import PeerProcess
from benchmarks.subjects import in_model
from jaxzoo.mixers import Context, Mixer, MixerConfig
from jaxzoo.models.accounting import count_parameters
from jaxzoo.utils import host_memory

STEPS = 32
"""Decode steps per timed call."""
CHUNK = 512
"""Tokens per chunk of the prefill."""
VOCAB_SIZE = 8192
"""Number of ids, for mixers that read token ids."""
FEWEST_CALLS, MOST_CALLS = 3, 50
"""Number of timed calls, without the first one."""

PEERS: dict[str, str] = {
    "base_conv": "zoology_base_conv",
    "base_conv filter=implicit": "zoology_base_conv_implicit",
    "taylor_linear_attention": "zoology_based",
    "hyena form=release": "zoology_hyena",
    "h3": "zoology_h3",
    "mamba": "transformers_mamba",
    "rwkv4_time_mix": "transformers_rwkv",
}
"""For each subject with a peer, the peer's name in `mixers_cpu_torch.py`."""


class Size(NamedTuple):
    width: int
    batch: int
    length: int
    seconds: float
    """Time for the calls of one measurement."""


def measure(config: MixerConfig, size: Size, peer: "Peer | None" = None) -> dict[str, Any]:
    """Measures time, memory and compile time of a mixer at one length, alternating with its peer."""
    host_memory.keep_freed_memory()
    mixer = in_model(config, size.width, size.length).build(rngs=nnx.Rngs(0))
    row: dict[str, Any] = {"length": size.length, "parameters": count_parameters(mixer)}
    train, compiled, row["compile_cpu_s"] = _training(mixer, size)
    row["temporary_bytes"] = compiled.memory_analysis().temp_size_in_bytes
    if peer is None:
        row["cpu_ms"] = _cpu_ms(train, size.seconds)
    else:
        before = _cpu_ms(train, size.seconds / 2)
        row |= {"peer_cpu_ms": peer.cpu_ms(size.seconds), "peer_parameters": peer.parameters}
        row["cpu_ms"] = statistics.mean([before, _cpu_ms(train, size.seconds / 2)])
    if mixer.config.capabilities.streams:
        steps, row["step_compile_cpu_s"], row["state_bytes"] = _decoding(mixer, size)
        row["step_cpu_us"] = 1e3 * _cpu_ms(steps, size.seconds) / STEPS
    return row


class Peer(PeerProcess):
    """A running `mixers_cpu_torch.py`, with the module `name` of `PEERS`."""

    def __init__(self, python: str, zoology: Path, name: str, size: Size):
        file = Path(__file__).with_name("mixers_cpu_torch.py")
        sizes = map(str, (size.width, size.batch, size.length))
        super().__init__([python, str(file), str(zoology), name, *sizes], host_memory.ENVIRONMENT)
        self.parameters = int(self.first_answer)

    def cpu_ms(self, seconds: float) -> float:
        """Returns the CPU ms per forward and backward, measured as by `_cpu_ms`."""
        return self.ask(str(seconds))[0]


def _training(mixer: Mixer, size: Size) -> tuple[Callable, Any, float]:
    """Returns a call of forward and backward, its executable, and the CPU seconds of tracing and compilation."""
    definition, parameters, others = nnx.split(mixer, nnx.Param, ...)
    x, weights = (jnp.asarray(array) for array in _noise(2, size))
    context = Context(tokens=_tokens(size), key=jax.random.key(0))

    def loss(parameters: Any, x: jax.Array, weights: jax.Array, context: Context) -> jax.Array:
        y, losses = nnx.merge(definition, parameters, others).with_losses(x, context)
        return sum(losses.values(), jnp.sum(y * weights))

    start = time.process_time()
    arguments = (parameters, x, weights, context)
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*arguments).compile()
    seconds = time.process_time() - start
    return lambda: compiled(*arguments), compiled, seconds


def _decoding(mixer: Mixer, size: Size) -> tuple[Callable, float, int]:
    """Returns a call of the last `STEPS` decode steps, CPU seconds of compilation, and bytes of state per row."""
    definition, variables = nnx.split(mixer)
    xs = jnp.asarray(_noise(1, size)[0]).swapaxes(0, 1)
    tokens = _tokens(size).T
    read = max(size.length - STEPS, 0)

    @jax.jit
    def prefill(variables: Any, state: Any, x: jax.Array, tokens: jax.Array) -> Any:
        mixer = nnx.merge(definition, variables)
        return mixer.prefill(x.swapaxes(0, 1), state, Context(tokens=tokens.T))[1]

    def decode(variables: Any, state: Any, x: jax.Array, tokens: jax.Array) -> Any:
        mixer = nnx.merge(definition, variables)

        def step(state: Any, inputs: tuple) -> Any:
            y, state = mixer.step(inputs[0], state, Context(tokens=inputs[1]))
            return state, y

        return jax.lax.scan(step, state, (x, tokens))

    state = mixer.init_state(size.batch, capacity=size.length)
    n_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) // size.batch
    for first in range(0, read, CHUNK):
        chunk = slice(first, min(first + CHUNK, read))
        state = prefill(variables, state, xs[chunk], tokens[chunk])
    start = time.process_time()
    compiled = jax.jit(decode).lower(variables, state, xs[read:], tokens[read:]).compile()
    seconds = time.process_time() - start
    return lambda: compiled(variables, state, xs[read:], tokens[read:]), seconds, n_bytes


def _noise(count: int, size: Size) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, size.batch, size.length, size.width)).astype(np.float32)


def _tokens(size: Size) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).integers(0, VOCAB_SIZE, (size.batch, size.length)), jnp.int32)


def _cpu_ms(call: Callable[[], Any], seconds: float) -> float:
    """Returns the median CPU ms per call, of as many calls as fit into the time; the first is not counted."""
    times: list[float] = []
    jax.block_until_ready(call())
    while len(times) < FEWEST_CALLS or (sum(times) < seconds and len(times) < MOST_CALLS):
        start = time.process_time()
        jax.block_until_ready(call())
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)
