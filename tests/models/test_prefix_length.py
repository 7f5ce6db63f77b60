"""`LanguageModelConfig.prefix_length`: documents, streams, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxzoo.data.text_data import TextDataConfig
from jaxzoo.generation.generate import Generation
from jaxzoo.mixers import GatedShortConvConfig, TaylorLinearAttentionConfig
from jaxzoo.tasks import continuous_mqar, mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.checks import check_prefix
from jaxzoo.train.config import RunConfig
from tests.models.hybrids import hybrid_config, make_model, random_tokens

PATTERN = (TaylorLinearAttentionConfig(n_heads=2, feature_dim=3), GatedShortConvConfig())
CONFIG = hybrid_config(pattern=PATTERN, n_layers=4, prefix_length=5)
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_documents_prefill_and_steps_equal_the_call():
    """Kills: a prefix of the row instead of each document, positions that ignore the state, a layer that is not told, a
    short convolution that refuses what it does not read, a prefix read in parts that gives other numbers."""
    model, tokens = make_model(CONFIG), random_tokens(CONFIG)
    ids = jnp.asarray([[5] * 3 + [2] * 8, [1] * 6 + [0] * 5], jnp.int32)
    documents = ((0, 0, 3), (0, 3, 11), (1, 0, 6), (1, 6, 11))
    first = np.stack([np.roll(np.asarray(tokens)[row], -start) for row, start, _ in documents])

    @nnx.jit
    def run(model):
        head, state = model.prefill(tokens[:, :6], model.init_state(2))
        step = lambda state, token: model.step(token, state)[::-1]  # noqa: E731
        _, tail = jax.lax.scan(step, state, tokens[:, 6:].T)
        cut, after = model.prefill(tokens[:, :4], model.init_state(2))
        stepped = jnp.concatenate([head, tail.swapaxes(0, 1)], axis=1)
        return (
            model(tokens),
            model(tokens, segment_ids=ids),
            model(first),
            stepped,
            (cut, model.step(tokens[:, 4], after)[0]),
        )

    called, packed, alone, stepped, broken = jax.tree.map(np.asarray, run(model))
    assert_close(stepped, called)
    for (row, start, stop), expected in zip(documents, alone, strict=True):
        if stop - start >= 5:  # in `alone` others follow, which a shorter document's prefix would read
            assert_close(packed[row, start:stop], expected[: stop - start])
    assert all(np.isnan(x[..., : CONFIG.vocab_size]).all() for x in broken)


def test_first_logits_depend_on_later_tokens_of_the_prefix_only():
    """Kills: a prefix that is one token too long or too short."""
    model, tokens = make_model(CONFIG), np.asarray(random_tokens(CONFIG))
    others = np.stack([np.where(np.arange(tokens.shape[1]) == i, (tokens[0] + 1) % 13, tokens[0]) for i in range(8)])
    logits = np.asarray(nnx.jit(lambda model: model(jnp.asarray(np.concatenate([tokens[:1], others]))))(model))
    change = np.abs(logits[1:, 0] - logits[0, 0]).max(axis=-1)
    assert (change[:5] > 1e-4).all()
    assert (change[5:] == 0).all()


def test_refusals():
    """Kills: a prefix of a causal model, targets that the model reads in its input, a prompt that is read in parts."""
    with pytest.raises(ValueError, match="prefix_length=5 needs a layer with a prefix"):
        hybrid_config(pattern=PATTERN[1:], prefix_length=5)
    task = mqar.preset(64, 4, n_passes=2)
    data = RecallDataConfig(train=(Examples(task=task, n_examples=64),), valid=(Examples(task=task, n_examples=8),))
    fields = {"pattern": PATTERN, "vocab_size": task.vocab_size, "max_length": task.length}
    check_prefix(RunConfig(model=hybrid_config(**fields, prefix_length=16), data=data))
    with pytest.raises(ValueError, match="prefix_length=17 must be at most 16"):
        check_prefix(RunConfig(model=hybrid_config(**fields, prefix_length=17), data=data))
    assert continuous_mqar.preset(4, 2).first_target == 8
    with pytest.raises(ValueError, match="prefix_length=5 must be at most 0"):
        check_prefix(RunConfig(model=CONFIG, data=TextDataConfig()))
    with pytest.raises(ValueError, match="prefix_length=5: generation reads prompts in chunks"):
        Generation(make_model(CONFIG), [[1, 2, 3]], max_tokens=2)
