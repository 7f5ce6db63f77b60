"""The contract of `jaxzoo.mixers.base`, asked of every registered mixer by the functions of `jaxzoo.testing`."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.cli.user_files import import_file
from jaxzoo.mixers import Context, RWKV7TimeMixConfig, state_bytes
from jaxzoo.testing import check_mixer
from jaxzoo.testing.mixer_gradients import check_call, check_gradients
from jaxzoo.testing.mixer_inputs import (
    BATCH,
    LENGTH,
    MAX_LENGTH,
    WARM,
    Sequences,
    assert_close,
    build,
    inputs,
    ready,
    segment_ids,
)
from jaxzoo.testing.mixer_streams import check_streams, check_values, in_turn, streams
from jaxzoo.testing.mixer_training import BatchRows, check_dependence, check_documents, check_parameters, training
from tests.mixers import wrong
from tests.mixers.cases import CASES, SLOW, TINY
from tests.mixers.moved import quick_rngs
from tests.mixers.wrong import FAULTS, WrongConfig
from tests.pallas_kernels.shared import full, slow

FAMILIES = {
    f"{name}-tiny"
    for name in (
        "Attention",
        "BaseConv",
        "GatedDeltaNet",
        "Hyena",
        "Mamba2",
        "RGLRU",
        "RWKV7TimeMix",
        "TaylorLinearAttention",
    )
}
"""One mixer of each family."""


def cases(core=TINY, other=full, **promised):
    """Parametrises by the cases with these capabilities: those of `core` have no mark, those of `SLOW` are slow, and
    `other` marks the rest. By the scope the tests of a case run in one process, which compiles their programs once."""
    chosen = [
        name
        for name, config in CASES.items()
        if all(getattr(config.capabilities, field) == value for field, value in promised.items())
    ]
    marked = [name if name in core else slow(name) if name in SLOW else other(name) for name in chosen]
    return pytest.mark.parametrize("case", marked, scope="module")


ALL, STREAMING = cases(), cases(streams=True)
NUMBERS = (0, LENGTH)
"""Tokens of a prefill: none, and three chunks and a rest of one."""


@STREAMING
def test_prefill_from_any_state_equals_steps(case):
    """Kills a wrong mask, chunk carry, decay, padding that enters a state, a ring that wraps wrongly; a state that
    drifts to another dtype or weak type, for which the second call would compile again; a size by formula, and a state
    that grows with the capacity and does not say so."""
    check_streams(CASES[case], NUMBERS)


@pytest.mark.slow
@STREAMING
def test_prefill_of_one_token_and_of_a_chunk_equals_steps(case):
    """Kills a prefill that is shorter than a filter, and one without a rest. Others end with a chunk of one token."""
    check_streams(CASES[case], (1, 4))


@cases(core=FAMILIES)
def test_an_output_depends_on_the_past_its_own_row_and_every_parameter(case):
    """Kills a look at the future (exactly 0, but for the rounding of a Fourier transform), a dead past, and a
    promise to see the future that is not kept. A selection by the future has no derivative: it shows by a change.
    Kills a mix-up of batch and time or heads: an output of row 0 has no gradient in any other row. Kills a parameter
    that nothing reads, a gradient that is not finite, a term without a weight, a weight without a term, an array for a
    scalar, a training output of its own. One mixer per family is core: the others take as long to compile."""
    check_parameters(CASES[case])
    check_dependence(CASES[case])


@cases(segments=True, causal=True)
def test_packed_documents_equal_the_documents_alone(case):
    """Kills a leak from one document into the next, in a filter, a window, a state, a denominator or a position, on the
    way forth and back."""
    check_documents(CASES[case])


@STREAMING
def test_call_equals_steps(case):
    """Kills a training form that disagrees with the streaming forms."""
    check_call(CASES[case], NUMBERS)


@cases(core=FAMILIES, other=slow, streams=True)
def test_call_and_gradients_equal_those_of_two_prefills(case):
    """Kills a state that stops gradients, or carries wrong ones: two halves must give one pass's gradients. They fill a
    state of their capacity, which must be exact. Kills a wrong VJP that the call and `prefill` share.
    One mixer per family is core: VJPs written by hand are in ops, whose tests compare them with float64."""
    check_gradients(CASES[case])


@pytest.mark.full
def test_values_of_a_stream_are_those_of_the_call():
    """Kills values for later layers that forget the state, or the token before."""
    check_values(ready(dataclasses.replace(RWKV7TimeMixConfig.tiny(), value_residual=False)))


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mixer_that_breaks_the_contract_is_named(fault):
    """Kills a `check_mixer` that accepts a fault of its list: a future that comes in by a token or a
    choice, a leak between documents of a mixer that sees both sides, a state of fixed size that promises to grow, NaN
    that agrees with NaN, a state next to an infinite entry, a wrong VJP of all parallel forms, values that forget the
    state, outputs of another dtype."""
    if not fault:
        check_mixer(WrongConfig(d_model=5))
        return
    with pytest.raises(AssertionError, match=rf"^Wrong: .* must .*; the usual cause is [\s\S]*{FAULTS[fault]}"):
        check_mixer(WrongConfig(d_model=5, fault=fault))


@pytest.mark.full
@ALL
def test_a_batch_of_0_rows(case):
    """Kills: a size that is derived from the others, by division by 0."""
    stream, mixer = inputs(CASES[case]).at(slice(0), slice(None)), build(CASES[case])

    def all_forms():
        y = mixer(stream.x, stream.context)
        if not mixer.config.capabilities.streams:
            return (y,)
        last, first = stream.at(slice(None), 0), stream.at(slice(None), slice(1, None))
        prefilled, state = mixer.prefill(first.x, mixer.init_state(0, capacity=MAX_LENGTH), first.context)
        return y, prefilled, mixer.step(last.x, state, last.context)[0]

    assert all(y.size == 0 and y.shape[-1] == stream.x.shape[-1] for y in jax.eval_shape(all_forms))


@cases(growing_state=True)
def test_a_capacity_sizes_the_state(case):
    """Kills a capacity that is ignored, or that nobody asks for."""
    mixer = build(CASES[case])
    assert state_bytes(mixer, capacity=2 * LENGTH) > 1.5 * state_bytes(mixer, capacity=LENGTH)
    with pytest.raises(ValueError, match="capacity=None must be positive"):
        mixer.init_state(1)


@pytest.mark.full
@cases(growing_state=True)
def test_a_full_state_is_exact(case):
    """Kills outputs that depend on the capacity, in blocks that it does not divide and in the last step, too."""
    graph, variables = nnx.split(build(CASES[case]))
    whole = inputs(CASES[case], LENGTH + max(WARM))
    stream = Sequences(*(x[:, :LENGTH] for x in whole))

    @jax.jit
    def run(variables, stream):
        mixer, outputs = nnx.merge(graph, variables), []
        for capacity in (LENGTH, LENGTH + 1):
            head, tail = (Sequences(*(x[:, cut] for x in stream)) for cut in (slice(0, 7), slice(7, None)))
            y, state = mixer.prefill(head.x, mixer.init_state(BATCH, capacity=capacity), head.context)
            outputs.append(jnp.concatenate([y, in_turn(mixer, tail, state)[0]], axis=1))
        return outputs

    for y in run(variables, stream):
        assert_close(y, streams(CASES[case], NUMBERS)["steps"][:, :LENGTH])


def test_what_a_mixer_does_not_honour_is_refused_by_name():
    """Kills a mixer that lets documents leak into each other and says nothing, segment ids that prefill and step ignore
    (a new document starts from a fresh state), an error from deep inside a mixer that nobody gave the token ids."""
    for case in TINY:
        mixer = nnx.eval_shape(lambda case=case: CASES[case].build(rngs=quick_rngs()))
        promised, (x, tokens) = CASES[case].capabilities, inputs(CASES[case])
        name, ids = type(mixer).__name__, segment_ids()
        packed = Context(tokens=tokens, segment_ids=ids, first_values=jnp.asarray(x))
        one = jax.tree.map(lambda leaf: leaf[:, 0], packed)
        if not promised.segments:
            for run in (mixer, mixer.with_losses):
                with pytest.raises(ValueError, match=f"^{name} does not honour segment_ids"):
                    run(x, packed)
        if promised.streams:
            with pytest.raises(ValueError, match=f"^{name} got segment_ids with a state"):
                mixer.prefill(x, None, packed)
            with pytest.raises(ValueError, match=f"^{name} got segment_ids with a state"):
                mixer.step(x[:, 0], None, one)
        if promised.needs_tokens:
            with pytest.raises(ValueError, match=f"^{name} reads token ids, and got none"):
                mixer(x)
        if promised.needs_values:
            with pytest.raises(ValueError, match=f"^{name} mixes its values with those of an earlier layer"):
                mixer(x)


@pytest.mark.parametrize("case", [full(case) if case in FAMILIES else slow(case) for case in sorted(TINY)])
def test_bfloat16_stays_close(case):
    """Kills sums in bfloat16: the relative L2 error stays within 3 % (three roundings of 2^-8 a layer, the largest
    seen over all cases about 1.2 %), and the output has the dtype of the input."""
    expected, stream = training(CASES[case])["y"][BatchRows.whole], inputs(CASES[case])
    x = stream.x.astype(jnp.bfloat16)
    y = jax.jit(build(CASES[case]))(x, Sequences(x, stream.tokens).context)
    assert y.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(y, np.float32) - expected) <= 0.03 * np.linalg.norm(expected)


def test_a_config_builds_the_mixer_that_declares_it(tmp_path):
    """Kills a declaration that is a string after `from __future__ import annotations`, and the first of two
    definitions, of a notebook, that is built for good."""
    source = Path(wrong.__file__).read_text()
    file = tmp_path / "late.py"
    file.write_text(source.replace("import dataclasses", "from __future__ import annotations\nimport dataclasses", 1))
    module = import_file(file)
    for _ in range(2):
        config = module.WrongConfig(d_model=5)
        assert type(nnx.eval_shape(lambda config=config: config.build(rngs=quick_rngs()))) is module.Wrong
        exec(source[source.index("class Wrong(Mixer)") :], vars(module))


@pytest.mark.slow
@ALL
def test_jit_equals_eager(case):
    """Kills numbers that depend on how the program is built; eager, every operation is a program of its own."""
    mixer, stream = build(CASES[case]), inputs(CASES[case])
    assert_close(jax.jit(mixer)(stream.x, stream.context), mixer(jnp.asarray(stream.x), stream.context), 1e-6)


@ALL
def test_no_rows_and_no_tokens(case):
    """Kills a batch without rows or tokens that divides by zero, or a reshape of nothing."""
    config = CASES[case]
    mixer, stream = build(config), inputs(config)
    if not config.capabilities.needs_tokens:
        y = jax.eval_shape(mixer, jnp.asarray(stream.x[:, :0]), Sequences(*(x[:, :0] for x in stream)).context)
        assert y.shape == (BATCH, 0, config.width)
    none = jax.tree.map(lambda x: x[:0] if x.shape[:1] == (BATCH,) else x, stream)
    y = jax.eval_shape(mixer, jnp.asarray(none.x), none.context)
    assert y.shape == (0, *stream.x.shape[1:])
    if config.capabilities.streams:
        state = jax.eval_shape(lambda: mixer.init_state(0, capacity=LENGTH))
        plain = Context(first_values=none.context.first_values)
        if not config.capabilities.needs_tokens:
            y, after = jax.eval_shape(mixer.prefill, jnp.asarray(none.x), state, plain)
            assert y.shape == (0, *stream.x.shape[1:])
            assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
