"""Generation. Kills: a token at the wrong position, a row that reads another row's state."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.generation import Generation, Sampling, generate
from jaxzoo.generation.decode import decode_block, first_rows, read_chunk
from jaxzoo.generation.generate import cache_capacity
from jaxzoo.mixers import MIXERS, AttentionConfig, GatedShortConvConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModel, LanguageModelConfig
from jaxzoo.models.blueprint import make_blueprint, split_variables
from jaxzoo.parallel.sharding import MeshConfig, make_mesh, named_sharding
from tests.mixers.outside import SignedTokensConfig
from tests.models.hybrids import ALL_FIVE, hybrid_config, make_model, run

VOCAB = 13
LENGTHS = (1, 7, 8, 9, 63, 200, 600)
HOT = Sampling(temperature=5.0, top_k=11, top_p=0.97)
"""Logits of these models are of order 10: no draw is certain."""


def tiny_config(mixer, **fields) -> LanguageModelConfig:
    defaults = {"pattern": (mixer,), "d_model": mixer.d_model, "n_layers": 1, "vocab_size": VOCAB, "mlp_width": 5}
    defaults["tie_embeddings"] = False  # a tied head repeats the last token forever
    return LanguageModelConfig(**{**defaults, **fields})


def fixed() -> LanguageModel:
    """Model of all mixers with a state of fixed size."""
    return make_model(hybrid_config(pattern=ALL_FIVE[:4], n_layers=4))


def growing(**fields) -> LanguageModel:
    """Two mixers, one of them with a state that grows. Most tests give it three prompts and up to 64 tokens: then
    they share the compiled programs."""
    pattern = (TaylorLinearAttentionConfig(n_heads=2, feature_dim=3), AttentionConfig(n_heads=2, positions="rotary"))
    return make_model(hybrid_config(**{"pattern": pattern, "n_layers": 2, **fields}))


def some_prompts(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(VOCAB, size=n) for n in lengths]


MODELS = {
    **{
        cls.__name__: functools.partial(tiny_config, cls.tiny())
        for cls in (*MIXERS.values(), SignedTokensConfig)
        if cls.tiny().capabilities.streams
    },
    "RWKV7TimeMixConfig": functools.partial(
        tiny_config, dataclasses.replace(MIXERS["rwkv7_time_mix"].tiny(), value_residual=False)
    ),
    "hybrid": functools.partial(hybrid_config, pattern=ALL_FIVE[2:], n_layers=3),
    "learned positions": functools.partial(tiny_config, GatedShortConvConfig(d_model=8), max_positions=50),
    "alibi": functools.partial(tiny_config, AttentionConfig(d_model=12, n_heads=6, n_kv_heads=2, positions="alibi")),
}


TIERS = {"hybrid": (), "learned positions": pytest.mark.full}
"""Core: matrices, rings and caches, in one hybrid. Full: learned positions. Slow: others, whose states the contract of
the mixers holds."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=TIERS.get(name, pytest.mark.slow)) for name in MODELS])
def test_greedy_tokens_are_the_argmax_of_the_full_pass(name):
    """Kills: a step or a chunk at the wrong position, a token that is read twice or never, another row's state,
    a cache that is too short, an id of the vocabulary's padding."""
    prompts, n_new = some_prompts(1, 8, 26), 20
    for seed in range(12):
        model = make_model(MODELS[name](), seed)
        new = generate(model, prompts, max_tokens=n_new, sampling=Sampling(temperature=0))
        if min(len(set(tokens.tolist())) for tokens in new) > 1:
            break
    else:
        pytest.fail("a constant text shows nothing, and no seed gives another")
    texts = [np.concatenate([prompt, tokens]) for prompt, tokens in zip(prompts, new, strict=True)]
    padded = np.stack([np.pad(text, (0, 26 + n_new - len(text))) for text in texts])  # after the text: unseen
    logits = np.asarray(run(model, jnp.asarray(padded, jnp.int32)))
    for row, prompt in enumerate(prompts):
        expected = logits[row, len(prompt) - 1 : len(texts[row]) - 1].argmax(axis=-1)
        np.testing.assert_array_equal(new[row], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "rows"),
    [pytest.param(fixed, range(7), marks=pytest.mark.slow), (growing, (2, 3))],
    ids=["fixed", "growing"],
)
def test_prompts_of_all_lengths_together_are_as_each_alone(make, rows):
    """Kills: padding in a state, a row that is moved on by a chunk of the others, draws that follow the place in
    the batch."""
    lengths = LENGTHS if make is fixed else LENGTHS[:-1]
    model, prompts = make(), some_prompts(*lengths)
    for sampling in (Sampling(temperature=0), HOT):
        together = generate(model, prompts, max_tokens=21, sampling=sampling)
        for i in rows:
            (alone,) = generate(model, [prompts[i]], max_tokens=21, sampling=sampling, row_numbers=[i])
            np.testing.assert_array_equal(together[i], alone)
        order = [i for i in (5, 1, 6, 3, 0, 2, 4) if i < len(prompts)]
        shuffled = generate(model, [prompts[i] for i in order], max_tokens=21, sampling=sampling, row_numbers=order)
        for i, tokens in zip(order, shuffled, strict=True):
            np.testing.assert_array_equal(together[i], tokens)


@pytest.mark.full
@pytest.mark.parametrize("at_once", [1, 2])
def test_rows_beyond_the_memory_wait(at_once, monkeypatch):
    """Kills: a batch that is refused, or other draws, where the states of all rows do not fit into memory at once."""
    model, prompts = growing(), some_prompts(3, 8, 21)
    whole = generate(model, prompts, max_tokens=19, sampling=HOT, seed=5)
    monkeypatch.setattr(sys.modules["jaxzoo.generation.generate"], "rows_of_memory", lambda *_: at_once)
    parts = generate(model, prompts, max_tokens=19, sampling=HOT, seed=5)
    for expected, found in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(expected, found)
    generation = Generation(model, prompts, max_tokens=19, sampling=HOT, seed=5)
    generation.stop(2)
    assert generation.read() == sum(generation.lengths[:at_once])
    assert [sum(map(len, row)) for row in zip(*generation, strict=True)] == [len(whole[0]), len(whole[1]), 0]
    monkeypatch.setattr(sys.modules["jaxzoo.generation.generate"], "rows_of_memory", lambda *_: 0)
    with pytest.raises(ValueError, match=r"^max_tokens=19 makes a state of 40 tokens, beyond the memory"):
        generate(model, prompts, max_tokens=19)


@pytest.mark.full
def test_a_text_can_be_taken_up_again():
    """Kills: draws that depend on where the prompt ends: a text so far, as a prompt, goes on as it would have."""
    model, prompts = growing(), some_prompts(3, 8, 21)
    whole = generate(model, prompts, max_tokens=19, sampling=HOT, seed=5)
    longer = [np.concatenate([prompt, tokens[:9]]) for prompt, tokens in zip(prompts, whole, strict=True)]
    np.testing.assert_array_equal(
        generate(model, longer, max_tokens=10, sampling=HOT, seed=5), [tokens[9:] for tokens in whole]
    )


def test_seed_and_row_number_choose_the_text():
    """Kills: a seed that is ignored, rows with equal prompts that get equal texts."""
    model, prompts = growing(), some_prompts(5) * 3
    first, again, other = (generate(model, prompts, max_tokens=24, sampling=HOT, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert len({tokens.tobytes() for tokens in (*first, *other)}) == 6


def test_rows_end_by_max_tokens_stop_tokens_and_word_of_the_caller():
    """Kills: a row that runs on after its end, ends before it, or ends the others; a loop that runs for nobody."""
    model, prompts = growing(), some_prompts(3, 8, 12)
    free = generate(model, prompts, max_tokens=30, sampling=HOT)
    assert [len(tokens) for tokens in free] == [30, 30, 30]
    stop = int(free[0][9])
    ended = generate(model, prompts, max_tokens=30, sampling=HOT, stop_tokens=(stop, 12))
    for tokens, unbound in zip(ended, free, strict=True):
        hits = np.flatnonzero((unbound == stop) | (unbound == 12))
        np.testing.assert_array_equal(tokens, unbound[: hits[0] + 1] if hits.size else unbound)
    generation = Generation(model, prompts, max_tokens=30, sampling=HOT)
    parts = [next(generation)]
    generation.stop(1)
    parts += list(generation)
    found = [np.concatenate(row) for row in zip(*parts, strict=True)]
    assert len(found[1]) == len(parts[0][1])
    for tokens, unbound in zip(found, free, strict=True):
        np.testing.assert_array_equal(tokens, unbound[: len(tokens)])
    assert [len(found[0]), len(found[2])] == [30, 30]
    assert generation.done.all()
    with pytest.raises(StopIteration):
        next(generation)


def one_layer() -> LanguageModel:
    """One layer, quick to compile."""
    return make_model(hybrid_config(pattern=(TaylorLinearAttentionConfig(feature_dim=2),), n_layers=1))


def counted_compilations():
    """Programs compiled by this process so far."""
    return read_chunk._cache_size() + decode_block._cache_size() + first_rows._cache_size()


@pytest.mark.slow
def test_few_programs_serve_all_lengths():
    """Kills: a compilation for each prompt length, number of tokens, seed, or setting of the sampling."""
    model = one_layer()
    before = counted_compilations()
    generate(model, some_prompts(585, 1), max_tokens=17)
    assert counted_compilations() - before == 5, "three chunks, one block, the first state"
    for lengths, max_tokens, seed in (((3, 9), 5, 1), ((64, 700), 40, 2), ((1500, 2), 3, 3)):
        generate(model, some_prompts(*lengths), max_tokens=max_tokens, seed=seed, sampling=HOT)
    assert counted_compilations() - before == 5


def arguments(model: LanguageModel, batch_size: int, n_tokens: int):
    """The arguments of `decode_block`."""
    generation = Generation(model, some_prompts(*[3] * batch_size), max_tokens=n_tokens - 3)
    return generation._config, generation._variables, generation._rows, jnp.zeros(batch_size, bool), generation._rules


@pytest.mark.full
def test_the_state_is_donated_and_its_memory_used_again():
    """Kills: two copies of the state in memory, in prefill and in decode."""
    model = growing()
    config, params, rows, stopped, rules = arguments(model, 3, 40)
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(rows.state))
    compiled = decode_block.lower(config, params, rows, stopped, rules, block_size=16).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= state_bytes
    after, _ = decode_block(config, params, rows, stopped, rules, block_size=16)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(rows.state))
    chunk = (jnp.zeros((3, 8), jnp.int32), jnp.ones(3, bool))
    compiled = read_chunk.lower(config, params, after.state, *chunk).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= state_bytes
    read_chunk(config, params, after.state, *chunk)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(after.state))


def test_memory_is_constant_where_states_are():
    """Kills: anything of a fixed-size state that grows with the prompt or the new tokens, and a cache that does
    not grow where it must."""
    without_attention = make_model(hybrid_config(pattern=ALL_FIVE[:4], n_layers=4))

    def sizes(model, n_tokens):
        rows = Generation(model, some_prompts(3), max_tokens=n_tokens - 3)._rows
        return [leaf.nbytes for leaf in jax.tree.leaves(rows)]

    assert sizes(without_attention, 20) == sizes(without_attention, 1_000_000)
    assert sum(sizes(growing(), 20)) < sum(sizes(growing(), 1000))
    capacities = [cache_capacity(n) for n in range(1, 3000)]
    assert all(n <= capacity <= max(64, 1.5 * n) for n, capacity in enumerate(capacities, 1))
    assert len(set(capacities)) == 12


@pytest.mark.slow
def test_a_mesh_changes_nothing():
    """Kills: rows, states or parameters that are mixed up or left alone when shared out over 8 devices."""
    model, prompts = growing(d_model=16, pattern=ALL_FIVE[4:], n_layers=1), some_prompts(1, 9, 14, 3)
    expected = generate(model, prompts, max_tokens=20, sampling=HOT)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    blueprint = make_blueprint(model.config)
    shardings = jax.tree.map(lambda x, of: named_sharding(x.shape, of.axes, mesh), blueprint.shapes, blueprint.traits)
    with jax.set_mesh(mesh):
        generation = Generation(
            blueprint.model(jax.device_put(split_variables(model), shardings)), prompts, max_tokens=20, sampling=HOT
        )
        blocks = list(generation)
    assert len(generation._rows.newest.sharding.device_set) == 8
    for found, tokens in zip(zip(*blocks, strict=True), expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), tokens)


def test_a_model_that_has_diverged_is_named():
    """Kills: text drawn from NaN."""
    model = growing()
    model.final_norm.scale[...] = model.final_norm.scale[...] * jnp.nan
    with pytest.raises(ValueError, match=r"prompts\[0\]: the model's logits are not finite; its training may have"):
        generate(model, some_prompts(3, 4, 5), max_tokens=5)


def test_what_a_generation_refuses():
    """Kills: a mistake that shows as a shape error, or as NaN from learned positions that end."""
    for options, message in [
        ({"max_tokens": 0}, r"^max_tokens=0 must be in \[1, 2\^30\)$"),
        ({"seed": -1}, r"^seed=-1 must be in \[0, 2\^32\)$"),
        ({"block_size": 0}, "^block_size=0 must be positive$"),
        ({"row_numbers": [1, 2]}, r"^row_numbers=\[1, 2\] must be one per prompt, 1$"),
        ({"row_numbers": [-1]}, r"^row_numbers=\[-1\] must be in \[0, 2\^32\)$"),
        ({"stop_tokens": (2**31,)}, r"^stop_tokens=\(2147483648,\) must be token ids$"),
        ({"stop_tokens": (2.5,)}, r"^stop_tokens=\(2\.5,\) must be token ids$"),
        ({"max_tokens": 45}, "^prompt and max_tokens are 51 tokens together and must be at most the 50 learned"),
    ]:
        model = make_model(MODELS["learned positions"]())
        with pytest.raises(ValueError, match=message):
            generate(model, some_prompts(6), **{"max_tokens": 5, **options})
    autoencoder = make_model(tiny_config(GatedShortConvConfig(d_model=8), decode_last=True, max_positions=50))
    with pytest.raises(ValueError, match="decode_last=True: the model answers the tokens that it has read; it cannot"):
        generate(autoencoder, some_prompts(6), max_tokens=5)


def test_ids_beyond_the_tokenizers_are_never_drawn():
    """Kills: a token without text, where the model's vocabulary is larger than the tokenizer's."""
    model = growing()
    tokens = generate(model, [[1, 2, 3]] * 3, max_tokens=40, sampling=Sampling(temperature=20.0, n_ids=5))
    assert set(np.concatenate(tokens).tolist()) == set(range(5))
