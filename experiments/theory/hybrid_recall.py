"""A short convolution and one head of attention solve MQAR from token ids (ours; in Zoology's Fig. 2 they learn it).

Prop. H.27 is about rows that encode their roles (`attention_recall.py`). Here the input is token ids, `k1 v1 k2 v2 ..`
and then the keys again, as in `jaxzoo.tasks.mqar`, and the model is that of `configs/mqar/attention.py`: tied
embeddings, LayerNorms, BaseConv with three taps, attention of one head without positions. The residual has two halves
of w channels:

    embedding   [a(x_i) | a(x_i)]                   a: the code of a token, w signs that sum to 0
    BaseConv    [0 | a(x_{i-1}) - a(x_i)]           gate 1; the second half becomes the token before
    attention   queries a(x_i), keys a(x_{j-1}), values a(x_j): both halves get 4 times the value's code

so the query is compared with the token in front of every value. LayerNorm is a factor, as both halves have mean 0 and
variance 1. `codes` has inner products of at most w / 2, so

- a query's match scores `sharpness (w - w / 2)` above any other row: with `sharpness = 2 log(N / error) / w` the others
  weigh `error` at most, for up to N = `max_length` tokens;
- the logits of value v, `2 * 4 w - w` at least, exceed those of another token, `4 w + 2 w` at most: 7 w > 6 w, which
  leaves room for `error` below 1 / 28.

Assumed: within an example a query's key occurs once before; MQAR's fillers "zero" and "random" guarantee this, "any"
does not. The sizes depend only on the vocabulary: w = 32, width 64, is enough for 18,259 tokens at any length.
"""

import itertools
import math

import numpy as np
from flax import nnx

from experiments.theory.parameters import set_base_conv, write
from jaxzoo.mixers import AttentionConfig, BaseConvConfig
from jaxzoo.mixers.attention.softmax_attention import Attention
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.models import LanguageModel, LanguageModelConfig

VALUE_FACTOR = 4
"""Factor of a value's code in the residual; above 3 it outweighs the codes of the two tokens at the position."""
CHUNK = 2**13
"""Number of forms that `codes` checks at once."""


def build(vocab_size: int, max_length: int, *, error: float = 1e-3) -> LanguageModel:
    """Builds the model, whose logits at a repeated key have their maximum at its value. Raises `ValueError` unless
    `error` is in (0, 1/28)."""
    if not 0 < error < 1 / 28:
        raise ValueError(f"build: error={error} must be above 0 and below 1/28; 1e-3 is the default")
    code = codes(vocab_size)
    pattern = (BaseConvConfig(n_taps=3), AttentionConfig(n_heads=1))
    width = 2 * code.shape[1]
    config = LanguageModelConfig(
        pattern=pattern, d_model=width, vocab_size=vocab_size, max_length=max_length, mlp="none"
    )
    model = LanguageModel(config, rngs=nnx.Rngs(0), scanned=False)
    table = np.zeros((config.padded_vocab_size, width))
    table[:vocab_size] = np.tile(code, 2)
    write(model.embedding, table)
    delay, lookup = (stack.blocks[0].mixer for stack in model.stacks)
    assert isinstance(delay, BaseConv)
    assert isinstance(lookup, Attention)
    # 0 for the first half, the token before minus this one for the second; the factor undoes a norm's epsilon.
    second = np.arange(width) >= width // 2
    taps = np.zeros(delay.taps.shape)
    taps[0], taps[1] = -((1 + config.norm_eps) ** 0.5) * second, (1 + config.norm_eps) ** 0.5 * second
    set_base_conv(delay, np.zeros((width, width)), np.ones(width), taps, np.zeros(width))
    # First halves ask second halves for first halves.
    sharpness = 2 * math.log(max_length / error) / code.shape[1] * (1 + config.norm_eps)
    identity, nothing = np.eye(width // 2), np.zeros((width // 2, width // 2))
    ask, told = np.block([[identity, nothing], [nothing, nothing]]), np.block([[nothing, nothing], [identity, nothing]])
    write(lookup.q_proj.kernel, ask)
    write(lookup.k_proj.kernel, sharpness * width**0.5 * told)
    write(lookup.v_proj.kernel, ask)
    write(lookup.out_proj.kernel, VALUE_FACTOR * np.block([[identity, identity], [nothing, nothing]]))
    return model


def codes(count: int) -> np.ndarray:
    """Returns signs `(count, w)` that sum to 0 in each row, inner products at most w / 2 in size; w the least power of
    2. A row is `(-1)^Q(x)` for all x in {0, 1}^m, with Q a quadratic form over two elements without a constant. The
    difference of two is a third, and as a word of the Reed-Muller code of order 2 it is 1 at 2^m / 4 to 3 2^m / 4 of
    the points. There are 3, 35, 435, 18,259 for m = 2, 3, 4, 5, and some 10^6 for m = 6."""
    for bits in itertools.count(2):
        points = np.array(list(itertools.product((0, 1), repeat=bits)))
        pairs = [points[:, i] * points[:, j] for i in range(bits) for j in range(i)]
        monomials = np.array([*points.T, *pairs])
        rows = np.zeros((0, 2**bits), int)
        for first in range(0, 2 ** len(monomials), CHUNK):
            forms = np.arange(first, min(first + CHUNK, 2 ** len(monomials)))
            signs = 1 - 2 * ((forms[:, None] >> np.arange(len(monomials)) & 1) @ monomials % 2)
            rows = np.concatenate([rows, signs[signs.sum(1) == 0]])
            if len(rows) >= count:
                return rows[:count]
    raise AssertionError("unreachable")
