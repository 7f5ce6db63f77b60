"""Configs of a mixer by the bytes of its state, which are measured from the arrays of `init_state`."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxzoo.bench.protocol import Protocol, find_protocol
from jaxzoo.bench.rows import REMEDY, BenchRow
from jaxzoo.config.config_io import from_json
from jaxzoo.mixers.base import Inherited, MixerConfig, state_bytes
from jaxzoo.testing.mixer_inputs import build, inputs
from jaxzoo.testing.mixer_streams import in_turn

STATE_TOLERANCE = 1e-2
"""Largest difference of the call and the steps, relative to the largest output; what is forgotten makes more."""


class SizedMixer(NamedTuple):
    """A config and the bytes of state of one sequence."""

    config: MixerConfig
    state_bytes: int


def sized_mixers(config: MixerConfig, protocol: Protocol) -> dict[int, SizedMixer]:
    """Returns the mixer at each size of the protocol that it reaches, by size; else once, near the tuned size.

    The fields of `config.size_fields` all take the same number, whichever gives the nearest size; without such fields
    the mixer is measured as it is.

    Raises:
      ValueError: the mixer does not stream, or its fields do not fit the model.
    """
    found = _measured(config, protocol)
    nearest = {size: min(found, key=lambda mixer: abs(mixer.state_bytes - size)) for size in protocol.sizes}
    fitting = {size: mixer for size, mixer in nearest.items() if protocol.fits(mixer.state_bytes, size)}
    if fitting:
        return fitting
    own = min(found, key=lambda mixer: abs(mixer.state_bytes - protocol.tuned_size))
    return {own.state_bytes: own}


def _measured(config: MixerConfig, protocol: Protocol) -> list[SizedMixer]:
    """Sizes at valid numbers of four significant binary digits, up to twice the largest size of the protocol."""
    found: list[SizedMixer] = []
    numbers = range(1, max(protocol.d_model, protocol.length) + 1) if config.size_fields else ()
    for number in numbers:
        if number % max(1, 2 ** (number.bit_length() - 4)):
            continue
        try:
            sized = dataclasses.replace(config, **dict.fromkeys(config.size_fields, number))
            found.append(measure(sized, protocol.model))
        except ValueError:  # such as a number of heads that does not divide the width
            continue
        if len(found) > 1 and found[-1].state_bytes > max(2 * max(protocol.sizes), found[-2].state_bytes):
            break
    return found or [measure(config, protocol.model)]


def measure(config: MixerConfig, model: Inherited) -> SizedMixer:
    """Returns a mixer with the size of its state in such a model; a growing state has room for the model's length.

    Raises:
      ValueError: the fields do not fit together, or the mixer does not stream.
    """
    ready = config.inherit(model)
    ready.require("capabilities", ready.capabilities.streams, "must stream: without a state there is no size")
    mixer = nnx.eval_shape(lambda: ready.build(rngs=nnx.Rngs(0)))
    return SizedMixer(config, state_bytes(mixer, capacity=model.max_length))


def check_sizes(row: BenchRow, declared: type[MixerConfig]) -> None:
    """Measures the states of a row again. Raises `ValueError` if a size differs."""
    model = find_protocol(row.protocol).model
    for cell in row.cells:
        size = measure(from_json(cell.mixer, declared), model).state_bytes
        if size != cell.state_bytes:
            raise ValueError(f"{row.name}: state_bytes={cell.state_bytes} must be {size}, as measured; {REMEDY}")


def check_state(config: MixerConfig, model: Inherited) -> None:
    """Checks that a mixer remembers by nothing but its state: compiled steps from `init_state` must give the outputs of
    the call, over as many tokens as the model has.

    Raises:
      ValueError: they give others, or the mixer fails.
    """
    ready = config.inherit(model)
    name = type(config).__name__.removesuffix("Config")
    graph, variables = nnx.split(build(ready))
    stream = inputs(ready, model.max_length)

    @jax.jit
    def run(variables, stream):
        mixer = nnx.merge(graph, variables)
        state = mixer.init_state(stream.x.shape[0], capacity=model.max_length)
        return mixer(stream.x, stream.context), in_turn(mixer, stream, state)[0]

    try:
        called, stepped = map(np.asarray, run(variables, stream))
    except Exception as error:  # of the mixer's code; its attributes may hold tracers of an earlier step
        raise ValueError(f"{name}: compiled steps fail: {type(error).__name__}: {error}") from error
    worst = np.abs(called - stepped).max() / np.abs(called).max()
    if not worst <= STATE_TOLERANCE:
        found = f"outputs of {model.max_length} steps from init_state differ from the call by {worst:.2g}"
        rule = f"must differ by at most {STATE_TOLERANCE:g}; all that a step remembers must be in the state"
        raise ValueError(f"{name}: {found}, and {rule}")
