"""A language model of one layer, whose parameters a theorem sets.

The theorems of CAT are about one layer f on embeddings x of length 1, and answer with the token whose embedding is
nearest to f(X). A language model also has norms, and a residual that adds the embedding of the token that asks. Here
the residual has two halves, of the width of an embedding each: the layer reads the first, (x, 0), and writes the
second; the head reads the second alone. The embeddings have one length, which the norm in front of the layer gives
back; the norm after it is a positive factor; and the largest product with vectors of length 1 is that of the nearest.
"""

import math

import numpy as np
from flax import nnx

from experiments.theory.parameters import write
from jaxzoo.mixers import ConvolutionAugmentedAttention, ConvolutionAugmentedAttentionConfig
from jaxzoo.mixers.attention.landmark_cat import LandmarkCAT
from jaxzoo.models import LanguageModel, LanguageModelConfig
from jaxzoo.utils.array_typing import Float


def one_layer_model(
    mixer: ConvolutionAugmentedAttentionConfig,
    embeddings: Float[np.ndarray, "vocab d"],
    *,
    max_length: int,
    positions: Float[np.ndarray, "t d"] | None = None,
) -> tuple[LanguageModel, ConvolutionAugmentedAttention]:
    """Makes the model of the module docstring; the parameters of its layer are still random. The width is twice that of
    `embeddings`, which have length 1 or 0. `positions` are added to them: embeddings of one length, orthogonal to those
    of tokens."""
    vocab_size, d = embeddings.shape
    config = LanguageModelConfig(
        pattern=(mixer,),
        d_model=2 * d,
        n_layers=1,
        vocab_size=vocab_size,
        pad_vocab_multiple=1,
        max_length=max_length,
        max_positions=None if positions is None else max_length,
        mlp="none",
        norm="rms",
        norm_eps=1e-30,
        tie_embeddings=False,
    )
    model = LanguageModel(config, rngs=nnx.Rngs(0))
    write(model.embedding, np.pad(embeddings, ((0, 0), (0, d))))
    write(model.head, np.pad(embeddings, ((0, 0), (d, 0))))
    length_2 = 1.0
    if positions is not None:
        write(model.position_embedding, np.pad(positions, ((0, 0), (0, d))))
        length_2 += float(np.square(positions[0]).sum())
    block = model.stacks[0].blocks[0]
    scale, layer = block.mixer_norm.scale, block.mixer
    assert scale is not None
    assert isinstance(layer, ConvolutionAugmentedAttention)
    write(scale, np.full(2 * d, math.sqrt(length_2 / (2 * d))))
    return model, layer


def set_projections(
    layer: ConvolutionAugmentedAttention,
    *,
    queries: Float[np.ndarray, "d k"],
    keys: Float[np.ndarray, "d k"],
    values: Float[np.ndarray, "d k"],
) -> None:
    """Sets W_q, W_k and W_v of a head, and W_o = I. In the model above W_q, W_k, W_v read its first d channels and W_o
    writes the last. Queries are also scaled by k^(1/2), which cancels the factor of the scores."""
    width, k = layer.config.width, layer.config.head_width
    rows = ((0, width - len(queries)), (0, 0))
    write(layer.q_proj.kernel, np.pad(math.sqrt(k) * queries, rows))
    write(layer.k_proj.kernel, np.pad(keys, rows))
    write(layer.v_proj.kernel, np.pad(values, rows))
    write(layer.out_proj.kernel, np.eye(k, width, k=width - k))


def set_taps(layer: ConvolutionAugmentedAttention | LandmarkCAT, name: str, taps: Float[np.ndarray, "w"]) -> None:
    """Sets the filter of the `queries`, `keys` or `values` of a head, the current token's tap first."""
    write(getattr(layer.head_filters, name), taps[:, None])


def sharpness(length: int, distance: float, gap: float) -> float:
    """Returns the factor c = log(4 L / eps) / gap of scores above which softmax approximates a choice. If one of L =
    `length` scores exceeds all others by `gap`, then c times them gives the others a weight of at most (L - 1) eps / (4
    L) together. A mean of vectors of length 1 is then closer than eps / 2 to the chosen one, the nearest of all vectors
    with smallest distance eps."""
    return math.log(4 * length / distance) / gap
