"""Chunks of prompts. Kills: a token that is read twice or never."""

import numpy as np
import pytest

from jaxzoo.generation.generate import largest_chunk
from jaxzoo.generation.prompts import CHUNKS, check_prompts
from jaxzoo.models import presets
from pallas_kernels.dispatch import lowering_for

LENGTHS = (1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 73, 200, 511, 512, 513, 577, 1100)


def some_prompts(lengths):
    rng = np.random.default_rng(0)
    return check_prompts([rng.integers(1, 50, size=n) for n in lengths], n_ids=50)


def read(prompts, row, largest=CHUNKS[0]):
    """The tokens that a row reads, in order, and the sizes of its chunks."""
    chunks = [chunk for chunk in prompts.chunks(largest) if chunk.takes_part[row]]
    tail, length = prompts.tail()
    parts = [*(chunk.tokens[row] for chunk in chunks), tail[row, : length[row]]]
    return np.concatenate(parts), [chunk.tokens.shape[1] for chunk in chunks]


def test_every_row_reads_its_prompt_once_and_nothing_else():
    """Kills: a token twice or left out at a border, a chunk that a row takes part in without having its tokens,
    a prompt that leaves nothing to draw from."""
    prompts = some_prompts(LENGTHS)
    for row, prompt in enumerate(prompts.rows):
        for largest in (512, 1024, 8192):
            np.testing.assert_array_equal(read(prompts, row, largest)[0], prompt)
    tail, length = prompts.tail()
    assert length.min() == 1
    assert length.max() == CHUNKS[-1] == tail.shape[1]
    assert all(chunk.takes_part.any() for chunk in prompts.chunks())


def test_a_prompt_is_cut_in_the_same_places_in_any_company_of_other_lengths():
    """Kills: rounding that depends on the other prompts of a batch."""
    together = some_prompts(LENGTHS)
    for row, prompt in enumerate(together.rows):
        assert read(together, row)[1] == read(check_prompts([prompt, [1] * 5000], n_ids=50), 0)[1]
    assert read(together, LENGTHS.index(1100))[1] == [512, 512, 64, 8]


@pytest.mark.parametrize("n", LENGTHS)
def test_prompts_of_one_length_are_read_in_few_chunks(n):
    """Kills: a token twice or left out, a third chunk below 512, more than four tokens for the decode loop."""
    for batch in (1, 3):
        prompts = some_prompts([n] * batch)
        tail, length = prompts.tail()
        assert (tail.shape[1], length.max() <= 4) == (8, True)
        for row, prompt in enumerate(prompts.rows):
            for largest in (512, 2048):
                tokens, sizes = read(prompts, row, largest)
                np.testing.assert_array_equal(tokens, prompt)
                assert sum(size < 512 for size in sizes) <= 2
    assert read(some_prompts([256]), 0)[1] == [192, 60]


def test_small_batches_read_more_at_once_on_accelerators():
    """Kills: other chunks on a CPU, scores of a cache that do not fit, a chunk that grows with the batch."""
    based, transformer = presets.based_360m(), presets.transformer_pp_360m()
    assert largest_chunk(based, 1) == 512
    for platform in ("cuda", "tpu"):
        with lowering_for(platform):
            assert [largest_chunk(based, b) for b in (1, 2, 3, 8, 32, 128)] == [8192, 8192, 4096, 2048, 512, 512]
            assert largest_chunk(transformer, 1) == 512
    assert read(some_prompts([16000]), 0, 8192)[1] == [8192, *[2048] * 3, *[512] * 3, 64, 60]


def test_what_prompts_may_not_be():
    """Kills: a shape error from inside the model, or NaN, for a mistake of the caller."""
    for prompts, message in [
        ([], r"^prompts=\[\] must hold at least one prompt$"),
        ([[1], []], r"^prompts\[1\] is empty; give at least one token"),
        ([[1], [2, 50]], r"^prompts\[1\]: token 50 must be in \[0, 50\)"),
        ([[-1]], r"^prompts\[0\]: token -1 must be in \[0, 50\)"),
        ([[0.5]], r"^prompts\[0\]: float64 of shape \(1,\) must be integers"),
        ([[[1, 2]]], r"^prompts\[0\]: int64 of shape \(1, 2\) must be integers of shape \(t,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_prompts(prompts, n_ids=50)
