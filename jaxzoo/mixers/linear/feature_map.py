"""Feature maps of `LinearAttention`: options, counts and parameters; `jaxzoo/layers/feature_maps.py` defines `phi`.

| `feature_map` | phi(x) | features of k channels | source |
| --- | --- | --- | --- |
| relu | max(x, 0) | k | Kasai et al. 2021 |
| pos_elu | ELU(x) + 1 | k | Katharopoulos et al. 2020 |
| square | x^2 (a release divides by sqrt 2, which cancels) | k | Based, Fig. 3 |
| identity | x | k | Based, Fig. 3 |
| cosformer | relu(x) times cosine and sine of the position | 2 k | Qin et al. 2022 |
| performer | positive random features | `n_features` | Choromanski et al. 2021 |
| exp | exp(x) | k, `mirrored` 2 k | Zoology release, ExpDim |
| softmax | softmax over the channels of a token | k, `mirrored` 2 k | Zhang et al. 2024, unlearned |
| taylor | 1, x and the distinct products of its entries | 1 + k + k (k + 1) / 2 | Based, eqs. 2-4 |
| taylor_full | 1, x and all products of its entries | 1 + k + k^2 | Based and Zoology releases |
| rebased | only the distinct products: (q . k)^2 / k | k (k + 1) / 2 | Aksenov et al. 2024 |
| all_poly | ((x W1)^2 + x^2 W2) / sqrt 2 | `n_features` | Zoology release, AllPolyMap |

`taylor` and `taylor_full` compute the same as `TaylorLinearAttention`, which is faster because it never stores the
features; the full form holds k (k - 1) / 2 features twice, a larger state for the same output.

Queries and keys can be normalized before the map (`qk_norm`) and then scaled and shifted (`qk_affine`), each with its
own parameters: `gamma norm(q) + beta`. Aksenov et al. use a LayerNorm over all heads
(`LinearAttentionConfig.rebased()`). flash-linear-attention normalizes per head, `qk_norm="head"`, with gamma and beta
shared by queries and keys, `qk_affine="shared"`: `LinearAttentionConfig.rebased_fla()`.

all_poly: W1 and W2 are shared by queries, keys and all heads. The released class initialises them by `poly_init`
"normal" (variance 1 / k), "uniform" (+-1 / sqrt k, "kaiming" there) or "signs" (+-1, "plusminus"), but the released
model then resets all linear layers to normal with 0.02: "model". Weights can be negative.

Deviations. cosformer: the released code divides positions by the length of the current call, so that each new token
changes all features and streaming is impossible; here by a fixed `n_positions`. performer: W is drawn once and fixed.
In the Zoology release its rows have a length of at most 1; here the lengths of Gaussian vectors, as in the paper. Of
the stabilisers of the authors' code, the shift of queries is kept; the shift of keys, which cannot stream, and the
constant added to features are not. relu, exp and softmax: the Zoology release clamps at 1e-12, here at 0.
"""

import dataclasses
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxzoo.config.checked import PositiveInt
from jaxzoo.layers import feature_maps as maps
from jaxzoo.layers.head_norm import head_norm
from jaxzoo.layers.variables import Buffer, buffer, parameter
from jaxzoo.mixers.base import Inherited, MixerConfig
from jaxzoo.utils.array_typing import Array, Float, Int

FeatureMap = Literal[
    "relu",
    "pos_elu",
    "square",
    "identity",
    "cosformer",
    "performer",
    "exp",
    "softmax",
    "taylor",
    "taylor_full",
    "rebased",
    "all_poly",
]
COUNTED = ("performer", "all_poly")
"""Maps with a free number of features."""
NORM_EPS = 1e-5
"""Added to the variance in the norm of queries and keys."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMapConfig(MixerConfig):
    """Queries, keys and their feature map; abstract."""

    n_heads: PositiveInt = 1
    """Heads."""
    feature_dim: PositiveInt = 16
    """Width of a head's queries and keys before the feature map."""
    feature_map: FeatureMap = "pos_elu"
    """Feature map phi; see the table of `jaxzoo/mixers/linear/feature_map.py`."""
    n_features: PositiveInt | None = None
    """Number of features of performer and all_poly; None: feature_dim, as in Based, Table 6."""
    n_positions: PositiveInt | None = None
    """Tokens per quarter turn of cosformer, up to which weights are positive; None: the model's length."""
    mirrored: bool = False
    """Adds the features of -x to those of x, for exp and softmax (the default of the Zoology release)."""
    poly_init: Literal["normal", "uniform", "signs", "model"] | None = None
    """Initialisation of the matrices of all_poly; None: normal."""
    poly_learned: bool = True
    """Whether the matrices of all_poly are trained."""
    qk_norm: Literal["none", "all_heads", "head"] = "none"
    """LayerNorm of queries and keys before the map: over all heads, or per head."""
    qk_affine: Literal["none", "scale", "scale_and_shift", "shared"] = "none"
    """Learned scale gamma, and shift beta, per channel after the norm; shared: the same for queries and keys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, readers in {
            "n_features": COUNTED,
            "n_positions": ("cosformer",),
            "mirrored": ("exp", "softmax"),
            "poly_init": ("all_poly",),
            "poly_learned": ("all_poly",),
        }.items():
            unset = type(self).__dataclass_fields__[field].default
            read = self.feature_map in readers or getattr(self, field) == unset
            rule = f"is read by feature_map={' and '.join(map(repr, readers))} only"
            self.require(field, read, rule, f"leave it at {unset}")

    @property
    def width_of_features(self) -> int:
        """Features per head, after the feature map."""
        k = self.feature_dim
        if self.feature_map in COUNTED:
            return self.n_features or k
        products = k * (k + 1) // 2
        doubled = 2 * k if self.mirrored else k
        expanded = {"cosformer": 2 * k, "taylor": 1 + k + products, "taylor_full": 1 + k + k**2, "rebased": products}
        return expanded.get(self.feature_map, doubled)

    @property
    def score_width(self) -> int:
        """Width of the dot products that give the weights within a chunk."""
        return self.feature_dim if self.feature_map == "rebased" else self.width_of_features

    @property
    def map_flops(self) -> float:
        """Forward FLOPs per token of the matmuls in the map, for queries and keys."""
        matrices = {"performer": 1, "all_poly": 2}.get(self.feature_map, 0)
        return 4.0 * matrices * self.n_heads * self.feature_dim * self.width_of_features

    def inherit(self, model: Inherited) -> Self:
        config = super().inherit(model)
        if config.feature_map == "cosformer" and config.n_positions is None:
            return dataclasses.replace(config, n_positions=model.max_length)
        return config


class Features(NamedTuple):
    """Queries and keys after the map, float32."""

    q: Float[Array, "b t h f"]
    k: Float[Array, "b t h f"]
    squares: tuple[Float[Array, "b t h k"], Float[Array, "b t h k"]] | None
    """Queries and keys whose squared dot products are the weights (rebased); None for other maps."""


class QueryKeyFeatures(nnx.Module):
    """Feature map of queries and keys, with its parameters.

    `random_features` (f, k), a buffer, the same for all heads (performer); `square_of_sum` and `sum_of_squares` (k, f),
    W1 and W2, parameters or buffers (all_poly); `q_scale`, `k_scale`, `q_shift`, `k_shift`, or
    `qk_scale`, `qk_shift`: (h k,), or (k,) for norms per head.
    """

    def __init__(self, config: FeatureMapConfig, *, rngs: nnx.Rngs) -> None:
        shape = (config.feature_dim, config.width_of_features)
        if config.feature_map == "performer":
            self.random_features: Buffer = buffer(maps.orthogonal_gaussian(rngs.params(), *shape[::-1]), (None, None))
        if config.feature_map == "all_poly":
            make = parameter if config.poly_learned else buffer
            self.square_of_sum: nnx.Variable[jax.Array] = make(_poly_matrix(config, shape, rngs), (None, None))
            self.sum_of_squares: nnx.Variable[jax.Array] = make(_poly_matrix(config, shape, rngs), (None, None))
        if config.feature_map == "cosformer":
            config.require("n_positions", config.n_positions is not None, "must be known for cosformer", "set it")
        one_by_one = config.qk_norm == "head"
        width, axes = (shape[0], (None,)) if one_by_one else (config.n_heads * shape[0], ("heads",))
        if config.qk_affine == "shared":
            self.qk_scale: nnx.Param[jax.Array] = parameter(jnp.ones((width,)), axes, decay=False)
            self.qk_shift: nnx.Param[jax.Array] = parameter(jnp.zeros((width,)), axes, decay=False)
        elif config.qk_affine != "none":
            self.q_scale: nnx.Param[jax.Array] = parameter(jnp.ones((width,)), axes, decay=False)
            self.k_scale: nnx.Param[jax.Array] = parameter(jnp.ones((width,)), axes, decay=False)
        if config.qk_affine == "scale_and_shift":
            self.q_shift: nnx.Param[jax.Array] = parameter(jnp.zeros((width,)), axes, decay=False)
            self.k_shift: nnx.Param[jax.Array] = parameter(jnp.zeros((width,)), axes, decay=False)
        self.config = config

    def __call__(
        self, q: Float[Array, "b t h k"], k: Float[Array, "b t h k"], position: Int[Array, "#b t"], *, shifted: bool
    ) -> Features:
        """Features of queries and keys; `shifted` allows a different factor per query."""
        q, k = self._normed(q, "q"), self._normed(k, "k")
        squares = None
        if self.config.feature_map == "rebased":
            root = np.float32(self.config.feature_dim**-0.25)
            squares = root * q, root * k
        return Features(self._map(q, position, shifted=shifted), self._map(k, position), squares)

    def _normed(self, x: Float[Array, "b t h k"], which: Literal["q", "k"]) -> Float[Array, "b t h k"]:
        """`gamma norm(x) + beta`, with the parts that the config enables; float32."""
        config, shape, x = self.config, x.shape, x.astype(jnp.float32)
        if config.qk_norm != "head":
            x = x.reshape(*shape[:2], 1, shape[2] * shape[3])
        if config.qk_norm != "none":
            x = head_norm(x, "layer", eps=NORM_EPS)
        whose = "qk" if config.qk_affine == "shared" else which
        if config.qk_affine != "none":
            x = x * getattr(self, f"{whose}_scale")[...][None, None, None]
        if config.qk_affine in ("scale_and_shift", "shared"):
            x = x + getattr(self, f"{whose}_shift")[...][None, None, None]
        return x.reshape(shape)

    def _map(self, x: Float[Array, "b t h k"], position: Int[Array, "#b t"], *, shifted: bool = False) -> Array:
        config = self.config
        match config.feature_map:
            case "performer":
                return maps.performer_features(x, self.random_features[...], shifted=shifted)
            case "exp":
                return maps.exp_features(x, mirrored=config.mirrored, shifted=shifted)
            case "softmax":
                return maps.softmax_features(x, mirrored=config.mirrored)
            case "taylor" | "taylor_full":
                return maps.taylor_features(x, full=config.feature_map == "taylor_full")
            case "rebased":
                return maps.rebased_features(x)
            case "all_poly":
                return maps.all_poly_features(x, self.square_of_sum[...], self.sum_of_squares[...])
            case "cosformer":
                assert config.n_positions is not None
                return maps.cosformer_features(x, position, n_positions=config.n_positions)
        return maps.PLAIN_MAPS[config.feature_map](x)


def _poly_matrix(config: FeatureMapConfig, shape: tuple[int, int], rngs: nnx.Rngs) -> Float[Array, "k f"]:
    """Initial matrix of all_poly by `poly_init`."""
    key, bound = rngs.params(), config.feature_dim**-0.5
    if config.poly_init == "uniform":
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)
    if config.poly_init == "signs":
        return jax.random.rademacher(key, shape, jnp.float32)
    return (config.std if config.poly_init == "model" else bound) * jax.random.normal(key, shape)
