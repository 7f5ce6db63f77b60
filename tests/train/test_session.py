"""Training on meshes of 8 devices. Kills: losses that differ from one device, a state that is not sharded."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.evals.validation import Validation
from jaxzoo.mixers import AttentionConfig, BaseConvConfig
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train import session as session_module
from jaxzoo.train.checkpoint import Checkpoints, restore
from jaxzoo.train.config import OptimizerConfig
from jaxzoo.train.session import Session
from jaxzoo.utils import host_memory
from tests.mixers.outside import N_TOKENS, SignedTokensConfig

STEPS = 4


def with_mesh(config, **sizes):
    return dataclasses.replace(config, mesh=MeshConfig(**sizes))


def with_pattern(config, name):
    attention = AttentionConfig(n_heads=4, n_kv_heads=2, positions="rotary")
    based = config.model.pattern
    pattern = {"based": based, "hybrid": (*based, attention)}.get(name, (attention,))
    model = dataclasses.replace(config.model, pattern=pattern, n_layers=2 * len(pattern))
    if name == "gpt-neox":
        model = dataclasses.replace(model, mlp="gelu", parallel_residual=True, tie_embeddings=False)
    return dataclasses.replace(config, model=model)


def losses(session, state, stream, steps=STEPS):
    metrics = []
    for _ in range(steps):
        state, m = session.update(state, next(stream))
        metrics.append(m)
    return [float(m["loss"]) for m in metrics], state


def fresh(session):
    return session.init_state(), session.dataset.train()


@pytest.fixture(scope="module")
def on_one_device(tiny_config):
    """`(losses, validation)` of the one-device run of a model, by name."""

    @functools.cache
    def run(name):
        session = Session(with_mesh(with_pattern(tiny_config, name), data=1), devices=jax.devices()[:1])
        with jax.set_mesh(session.mesh):
            curve, state = losses(session, *fresh(session))
            return curve, Validation(session).evaluate(state.variables)

    return run


MIXED = {"data": 2, "fsdp": 2, "tensor": 2}
MESHES = ({"data": 8}, {"data": 1, "fsdp": 8}, {"data": 4, "tensor": 2}, MIXED)
CASES = [(name, sizes) for name in ("hybrid", "based", "attention", "gpt-neox") for sizes in MESHES]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_mesh_equals_one_device(tiny_config, on_one_device, name, sizes):
    """Kills: a loss averaged by device, gradients summed not at all or in part (so does XLA on the mixed mesh
    if the layout before the head is left open), other random numbers on a mesh, padding rows that count."""
    session = Session(with_mesh(with_pattern(tiny_config, name), **sizes))
    with jax.set_mesh(session.mesh):
        curve, state = losses(session, *fresh(session))
        valid = Validation(session).evaluate(state.variables) if sizes == MIXED else None
    expected, expected_valid = on_one_device(name)
    assert max(expected) - min(expected) > 1e-2
    np.testing.assert_allclose(curve, expected, atol=1e-5, rtol=0)
    assert valid is None or valid == pytest.approx(expected_valid, abs=1e-4)


@pytest.mark.slow
def test_second_step_compiles_nothing(tiny_config):
    """Kills: output shardings that differ from the input's, so that the second step compiles again."""
    session = Session(with_mesh(with_pattern(tiny_config, "hybrid"), **MIXED))
    seen = []
    with jax.set_mesh(session.mesh):
        session.compile()
        state, stream = fresh(session)
        _, state = losses(session, state, stream, steps=2)
        jax.monitoring.register_event_duration_secs_listener(lambda name, _, **__: seen.append(name))
        losses(session, state, stream, steps=2)
        assert not [name for name in seen if "compile" in name]
        jax.jit(lambda x: x * 3.25 + 1.0)(np.float32(2))
    assert [name for name in seen if "compile" in name], "the listener hears no compilations at all"
    assert session.train_step.n_compiled == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(pytest.param(x, marks=pytest.mark.slow) for x in ("lion", "muon")), "adafactor"])
def test_state_of_every_optimizer_is_sharded_and_goes_on_with_one_device(tiny_config, name, tmp_path):
    """Kills: moments on every device, rows and columns of Adafactor in the layout of their matrix, a part of the state
    that is not in the checkpoint, and moments in another precision than the parameters under bfloat16."""
    model = dataclasses.replace(
        tiny_config.model, pattern=(BaseConvConfig(),), n_layers=3, d_model=128, mlp_width=128, dtype="bfloat16"
    )
    config = dataclasses.replace(
        tiny_config, model=model, optimizer=OptimizerConfig(name=name, learning_rate=3e-3, warmup_fraction=0.0)
    )
    eight = Session(with_mesh(config, **MIXED))
    with jax.set_mesh(eight.mesh), Checkpoints(tmp_path / "c") as checkpoints:
        _, state = losses(eight, *fresh(eight), steps=2)
        stream = eight.dataset.train()
        for _ in range(2):
            next(stream)
        arrays = [x for x in jax.tree.leaves((state.params, state.opt_state)) if x.ndim]
        assert {x.dtype for x in arrays} == {jnp.dtype("float32")}
        here = sum(np.prod(x.sharding.shard_shape(x.shape)) for x in arrays)
        assert here < 0.4 * sum(x.size for x in arrays)
        saved = jax.device_get(state.opt_state)
        checkpoints.save(2, state, cursor=stream.get_state(), config={})
        expected, _ = losses(eight, state, stream, steps=2)
    one = Session(with_mesh(config, data=1), devices=jax.devices()[:1])
    with jax.set_mesh(one.mesh):
        state, seal = restore(tmp_path / "c" / "2", one.abstract_state)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.opt_state), saved)
        stream = one.dataset.train()
        stream.set_state(seal.cursor)
        curve, _ = losses(one, state, stream, steps=2)
    np.testing.assert_allclose(curve, expected, rtol=5e-3)  # bfloat16, summed in another order
    assert abs(expected[1] - expected[0]) > 1e-3


def test_a_session_leaves_the_allocator_of_its_process_alone(small_config, monkeypatch):
    """Kills: a constructor that changes malloc for whoever imports the library."""
    monkeypatch.setattr(host_memory, "keep_freed_memory", lambda: pytest.fail("the allocator was changed"))
    assert not hasattr(session_module, "keep_freed_memory")
    Session(small_config)


def test_batch_that_devices_do_not_divide_is_refused(tiny_config):
    """Kills: an error from the depths of the compiler."""
    config = dataclasses.replace(tiny_config, train=dataclasses.replace(tiny_config.train, batch_size=12))
    with pytest.raises(ValueError, match=r"batch_size=12 must be divisible by 8, .*; take 16"):
        Session(with_mesh(config, data=4, fsdp=2))


def test_model_too_small_for_its_data_is_refused(tiny_config):
    """Kills: tokens without an embedding (NaN), sequences beyond the learned positions."""
    for field in ("vocab_size", "max_length", "max_positions"):
        model = dataclasses.replace(tiny_config.model, **{field: 15})
        line = rf"LanguageModelConfig.{field}=15 must be at least .*--model.{field[:3]}"
        with pytest.raises(ValueError, match=line):
            Session(dataclasses.replace(tiny_config, model=model))


@pytest.mark.slow
def test_losses_and_buffers_of_mixers_through_a_checkpoint(tiny_config, tmp_path):
    """Kills: a term that is not part of the loss, or not logged; a buffer that is updated, decayed or lost in a
    checkpoint."""
    pattern = (SignedTokensConfig(size_weight=3.0), *tiny_config.model.pattern)
    model = dataclasses.replace(tiny_config.model, pattern=pattern, n_layers=6, vocab_size=N_TOKENS)
    examples = (Examples(task=MQARConfig(vocab_size=N_TOKENS, length=12, n_pairs=2), n_examples=64),)
    config = dataclasses.replace(tiny_config, model=model, data=RecallDataConfig(train=examples, valid=examples))
    session = Session(with_mesh(config, data=4, fsdp=2))
    with jax.set_mesh(session.mesh):
        state, stream = fresh(session)
        buffers = jax.device_get(state.buffers)
        for _ in range(3):
            state, metrics = session.update(state, next(stream))
        with Checkpoints(tmp_path / "c") as checkpoints:
            checkpoints.save(3, state, cursor=stream.get_state(), config={})
            checkpoints.wait()
            restored, _ = restore(tmp_path / "c" / "3", session.abstract_state)
    parts = {name: float(value) for name, value in metrics.items() if name.startswith("loss")}
    assert parts.keys() == {"loss", "loss/cross_entropy", "loss/size"}
    assert parts["loss/size"] > 1e-3
    assert parts["loss"] == pytest.approx(parts["loss/cross_entropy"] + parts["loss/size"], rel=1e-5)
    assert len(jax.tree.leaves(buffers)) == 1
    for found in (state, restored):
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(found.buffers), buffers)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored.params), jax.device_get(state.params))
