"""Configuration of a language model."""

import dataclasses
import functools
import math
from typing import Annotated, Literal

import jax.numpy as jnp

from jaxzoo.config.checked import (
    Checked,
    FractionBelowOne,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rule,
)
from jaxzoo.layers.mlp import default_width
from jaxzoo.mixers.base import Inherited, MixerConfig
from jaxzoo.models.layout import Fold, fold_layers

LayerCount = Annotated[int, Rule("must be in [1, 65536]", 1, 65536)]
"""Upper bound: a config holds one mixer per layer, and would fill the memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(Checked):
    """Pre-norm language model whose layers follow a pattern of mixers."""

    pattern: tuple[MixerConfig, ...]
    """The mixers of the layers from the front, repeated over the depth."""
    d_model: PositiveInt = 64
    """Width of embedding and residual stream."""
    n_layers: LayerCount = 2
    """Number of layers; layer i has mixer i modulo the pattern's length."""
    vocab_size: PositiveInt = 8192
    """Number of token ids."""
    pad_vocab_multiple: PositiveInt = 8
    """The rows of the embedding are padded to a multiple of this; the added rows get no logit."""
    max_length: PositiveInt = 64
    """Longest sequence of the model, and the default length of long filters."""
    mlp: Literal["swiglu", "geglu", "geglu_tanh", "glu", "gelu", "gelu_tanh", "identity", "none"] = "swiglu"
    """Second branch of a layer: an MLP whose gate has a SiLU, GELU or sigmoid, or no gate (gelu). `identity` adds the
    normed residual (the released Zoology figures)."""
    mlp_width: NonNegativeInt = 0
    """Hidden units of the MLP; 0: 4 d (gelu), 8/3 d rounded up to a multiple of 256 (with a gate)."""
    mlp_bias: bool = False
    """Biases in the MLP."""
    parallel_residual: bool = False
    """Mixer and MLP read the same residual, each through its own norm, and are added together (GPT-NeoX); False: the
    MLP reads what the mixer has added to."""
    attention_post_norm: bool = False
    """Layers of softmax attention norm the outputs of mixer and MLP, in place of their inputs (OLMo Hybrid)."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm (Zoology) or RMSNorm (Based)."""
    norm_eps: NonNegativeFloat = 1e-5
    """Added to the variance (mean square) in a norm."""
    max_positions: PositiveInt | None = None
    """Rows of a learned position embedding (Zoology's attention models); None: no such embedding."""
    tie_embeddings: bool = True
    """The head is the embedding's transpose (with `pair_values`, that of the values)."""
    embed_scale: PositiveFloat = 1.0
    """Factor of the embedding (Gemma and Griffin: the root of d_model)."""
    logit_soft_cap: NonNegativeFloat = 0.0
    """Bound c of the logits, which become c tanh(logit / c) (Gemma, Griffin: 30); 0: none."""
    decode_last: bool = False
    """The model is an autoencoder (MAD's compression): the final norm gets, at each position, what a decoder makes of
    the last token's residual stream and of the position (`jaxzoo.layers.last_token_decoder`)."""
    pair_values: NonNegativeInt = 0
    """Number v of values, where a token is a key and a value side by side (Zoology's continuous MQAR): its id is
    `key (v + 1) + 1 + value`, or `key (v + 1)` without a value; the embeddings are frozen, and answers are the v values
    (`jaxzoo.layers.pair_embedding`). 0: tokens are tokens."""
    prefix_length: NonNegativeInt = 0
    """First tokens of each document that see one another (Just Read Twice, Arora et al. 2024), in the layers whose
    mixers support `Context.prefix`; other layers stay causal. Training needs data without targets among them, and
    streaming a first `prefill` of at least as many tokens. 0: causal."""
    embed_norm: bool = False
    """Applies the norm to the embedding too, as RWKV does before its first block."""
    embed_dropout: FractionBelowOne = 0.0
    """Dropout rate of the embedding."""
    residual_dropout: FractionBelowOne = 0.0
    """Dropout rate of each branch before it joins the residual."""
    init_std: NonNegativeFloat = 0.02
    """Standard deviation of the initialization: embedding, head and projections."""
    out_init_std: NonNegativeFloat | None = None
    """The same for output projections; None: init_std over sqrt(2 n_layers) (Zoology and Based, after GPT-2)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations inside a branch; parameters and residual stay float32."""
    remat: Literal["nothing", "projections", "mixer_inputs", "period", "everything"] = "nothing"
    """Recomputation in the backward pass to save memory, from least to most: nothing; projections: all but their
    outputs; mixer_inputs: mixers and MLPs, from the residual before each; period: periods of the pattern, from the
    residual before each; everything: groups of about the square root of the number of periods, from the residual before
    each group."""
    scan_layers: bool = True
    """Compiles equal periods once, as the body of a loop, which copies what the backward pass needs into a stack and
    out of it. False: unrolls them, with the same parameters; compiles more slowly (H100, 27 layers: twice) and moves
    fewer bytes, above all under `projections`."""

    def __post_init__(self) -> None:
        self.require("pattern", len(self.pattern) > 0, "must name at least one mixer")
        has_mlp = self.mlp not in ("identity", "none")
        rule = f"needs an MLP next to the mixer, and mlp={self.mlp!r} has none"
        self.require("parallel_residual", has_mlp or not self.parallel_residual, rule)
        rule = "must be False with parallel_residual, whose norms are before the branches"
        self.require("attention_post_norm", not (self.attention_post_norm and self.parallel_residual), rule)
        if self.pair_values:
            rule = f"must be a multiple of pair_values + 1 = {self.pair_values + 1}, for each key"
            self.require("vocab_size", self.vocab_size % (self.pair_values + 1) == 0, rule)
            self.require("tie_embeddings", self.tie_embeddings, "must be True with pair_values: the head is frozen too")
        wide = self.d_model >= 4 or not self.decode_last
        self.require("d_model", wide, "must be at least 4 with decode_last, for two frequencies of the position")
        rule = "must be True with remat='everything', which loops over groups of layers"
        self.require("scan_layers", self.scan_layers or self.remat != "everything", rule)
        _ = self.period
        promised = any(mixer.capabilities.prefix for mixer in self.layers)
        remedy = "take TaylorLinearAttention without decay, or 0"
        self.require("prefix_length", promised or not self.prefix_length, "needs a layer with a prefix", remedy)
        made = False
        for index, mixer in enumerate(self.layers):
            rule = f"has a {type(mixer).__name__} as layer {index}, which needs the values of an earlier layer"
            remedy = "begin with one of layer_index=0, or set its value_residual=False"
            self.require("pattern", made or not mixer.capabilities.needs_values, rule, remedy)
            made = made or mixer.capabilities.makes_values

    @functools.cached_property
    def layers(self) -> tuple[MixerConfig, ...]:
        """Mixers of all layers, with open fields filled in."""
        repeats = -(-self.n_layers // len(self.period))
        return (self.period * repeats)[: self.n_layers]

    @functools.cached_property
    def period(self) -> tuple[MixerConfig, ...]:
        """Mixers of the pattern, at most one per layer, with open fields filled in. Raises `ValueError` if a mixer
        refuses the width, or names another one."""
        inherited = Inherited(
            d_model=self.d_model, max_length=self.max_length, init_std=self.init_std, out_init_std=self.out_std
        )
        period = tuple(mixer.inherit(inherited) for mixer in self.pattern[: self.n_layers])
        for mixer in period:
            mixer.require("d_model", mixer.d_model == self.d_model, f"must equal the model's d_model={self.d_model}")
        return period

    @property
    def folds(self) -> tuple[Fold, ...]:
        promised = [mixer.capabilities for mixer in self.layers]
        keys: list[MixerConfig | None] = [mixer.scanned_as for mixer in self.layers]
        if any(each.needs_values for each in promised):
            # The layer that makes the values stands alone: a scan hands nothing to the layers after it.
            keys[[each.makes_values for each in promised].index(True)] = None
        return fold_layers(self.layers, keys)

    @property
    def state_grows(self) -> bool:
        """Whether the state holds up to `capacity` tokens."""
        return any(mixer.capabilities.growing_state for mixer in self.period)

    @property
    def streams(self) -> bool:
        """Whether the model reads token by token: all mixers do, and there is no decoder."""
        return not self.decode_last and all(mixer.capabilities.streams for mixer in self.period)

    @property
    def n_outputs(self) -> int:
        """Number of answers: token ids, or the values of pairs."""
        return self.pair_values or self.vocab_size

    @property
    def out_std(self) -> float:
        """`out_init_std`, or its default."""
        if self.out_init_std is not None:
            return self.out_init_std
        return self.init_std / math.sqrt(2 * self.n_layers)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the head, and of an embedding of tokens: `n_outputs`, rounded up."""
        return -(-self.n_outputs // self.pad_vocab_multiple) * self.pad_vocab_multiple

    @property
    def hidden_width(self) -> int:
        """Hidden units of the MLP; 0 without MLP."""
        if self.mlp in ("identity", "none"):
            return 0
        return self.mlp_width or default_width(self.mlp, self.d_model)

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)
