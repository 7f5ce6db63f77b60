"""Everything that a language model can say."""

import dataclasses
import math
from typing import Literal, get_args, get_type_hints

import jax.numpy as jnp

from jaxzoo.checked import Checked
from jaxzoo.layers.mlp import default_width
from jaxzoo.mixers.base import Inherited, MixerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(Checked):
    """A pre-norm language model whose layers follow a pattern of mixers."""

    pattern: tuple[MixerConfig, ...]
    """The mixers of the layers from the front, repeated over the depth."""
    d_model: int = 64
    """Width of embedding and residual stream."""
    n_layers: int = 2
    """Number of layers; layer i has mixer i modulo the pattern's length."""
    vocab_size: int = 8192
    """Number of token ids."""
    pad_vocab_multiple: int = 8
    """The embedding gets rows up to the next multiple of this; no logit goes to the added ones."""
    max_length: int = 64
    """Longest sequence that the model is made for, and so the taps of long filters that do not say how many."""
    mlp: Literal["swiglu", "gelu", "identity", "none"] = "swiglu"
    """Second branch of a layer. `identity` adds the normed residual (the released Zoology figures)."""
    mlp_width: int = 0
    """Hidden units of the MLP; 0: 4 d (gelu), 8/3 d rounded up to a multiple of 256 (swiglu)."""
    mlp_bias: bool = False
    """Biases in the MLP."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm (Zoology) or RMSNorm (Based)."""
    norm_eps: float = 1e-5
    """Added to the variance (mean square) in a norm."""
    max_positions: int | None = None
    """Rows of a learned embedding of the position (Zoology's attention models); None: there is none."""
    tie_embeddings: bool = True
    """The head is the embedding's transpose."""
    embed_dropout: float = 0.0
    """Dropout rate of the embedding."""
    residual_dropout: float = 0.0
    """Dropout rate of each branch before it joins the residual."""
    init_std: float = 0.02
    """Standard deviation of the initialisation; output projections get it over sqrt(2 n_layers)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations inside a branch; parameters and residual stay float32."""
    remat: bool = False
    """Recomputes each period in the backward pass instead of storing its activations."""

    def __post_init__(self) -> None:
        for field in ("d_model", "n_layers", "vocab_size", "pad_vocab_multiple", "max_length"):
            self.require(field, getattr(self, field) > 0, "must be positive")
        positions = self.max_positions is None or self.max_positions > 0
        self.require("max_positions", positions, "must be positive", "or None for no learned positions")
        for field in ("embed_dropout", "residual_dropout"):
            self.require(field, 0 <= getattr(self, field) < 1, "must be in [0, 1)")
        for field in ("mlp", "norm", "dtype"):
            choices = get_args(get_type_hints(type(self))[field])
            known = ", ".join(map(repr, choices))
            self.require(field, getattr(self, field) in choices, f"must be one of {known}")
        self.require("mlp_width", self.mlp_width >= 0, "must not be negative; 0 chooses by the width")
        self.require("pattern", len(self.pattern) > 0, "must name at least one mixer")
        _ = self.layers

    @property
    def layers(self) -> tuple[MixerConfig, ...]:
        """The mixer of every layer, its open fields filled with this model's.

        Raises:
          ValueError: a mixer refuses the width, or names another one.
        """
        inherited = Inherited(
            d_model=self.d_model, max_length=self.max_length, init_std=self.init_std, out_init_std=self.out_std
        )
        layers = tuple(self.pattern[i % len(self.pattern)].inherit(inherited) for i in range(self.n_layers))
        for layer in layers:
            layer.require("d_model", layer.d_model == self.d_model, f"must equal the model's d_model={self.d_model}")
        return layers

    @property
    def state_grows(self) -> bool:
        """Whether the state holds as many tokens as the capacity that it was made with."""
        return any(layer.capabilities.growing_state for layer in self.layers)

    @property
    def out_std(self) -> float:
        """Standard deviation of output projections (Zoology and Based, after GPT-2)."""
        return self.init_std / math.sqrt(2 * self.n_layers)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return -(-self.vocab_size // self.pad_vocab_multiple) * self.pad_vocab_multiple

    @property
    def hidden_width(self) -> int:
        """Hidden units of the MLP; 0 where there is none."""
        if self.mlp in ("identity", "none"):
            return 0
        return self.mlp_width or default_width(self.mlp, self.d_model)

    @property
    def compute_dtype(self) -> jnp.dtype:
        """`dtype` as JAX names it."""
        return jnp.dtype(self.dtype)
