"""State sizes and FLOPs per token of mixers, against sums by hand.

Kills: a state without its convolution's inputs, of other heads or widths; a matmul or filter that is not counted, or
counted twice. C is the capacity of growing states; `fft(n, t)`: transforms of n points for t tokens, per channel.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxzoo.mixers import (
    AttentionConfig,
    BaseConvConfig,
    BigBirdConfig,
    BlockedWindowAttentionConfig,
    CombaConfig,
    ConvolutionAugmentedAttentionConfig,
    DeltaNetConfig,
    ForgettingAttentionConfig,
    GatedDeltaNet2Config,
    GatedDeltaProductConfig,
    GatedLinearAttentionConfig,
    GatedShortConvConfig,
    GatedSlotAttentionConfig,
    H3Config,
    HGRNConfig,
    HyenaConfig,
    InputDependentConvConfig,
    LandmarkCATConfig,
    LatentAttentionConfig,
    LightningAttentionConfig,
    LinCATConfig,
    LinearAttentionConfig,
    LiquidS4Config,
    LongConvConfig,
    Mamba2Config,
    Mamba3Config,
    MambaConfig,
    MesaNetConfig,
    MLSTMConfig,
    MoBAConfig,
    MultiHeadHyenaConfig,
    NativeSparseAttentionConfig,
    NystromFormerConfig,
    PathAttentionConfig,
    RetNetConfig,
    RWKV4ChannelMixConfig,
    RWKV4TimeMixConfig,
    RWKV5TimeMixConfig,
    ScatterBrainConfig,
    SelectiveAttentionConfig,
    SlidingWindowAttentionConfig,
    TaylorLinearAttentionConfig,
    TTTConfig,
    state_bytes,
)
from tests.mixers.moved import abstract_mixer
from tests.pallas_kernels.shared import full

C = 11


def fft(n, t):
    return n * (5 * np.log2(n) + 3) / t


CAT = {"d_model": 12, "n_heads": 3, "n_taps": 5}
CAT_FLOPS = 2 * 4 * 12**2 + 4 * 12 * 100
PERFORMER = {"d_model": 8, "n_heads": 2, "feature_dim": 2, "n_features": 6}
MAPS = 2 * 8 * (4 + 4 + 8 + 8) + 2 * 2 * (2 * 2 * 6)
CHUNK, SUMS = 2 * 2 * (64 * 6 + 64 * 4), 2 * 2 * (6 * 4 + 6 * 4 + 6)
DELTA = {"d_model": 8, "n_heads": 2, "key_width": 6, "value_width": 10, "n_taps": 3}
GENERAL = 2 * 10 * (4 * 6 + 4 * 10) + 8 * 3 * 10
FAR = 4 * 12 * 10 + 2 * 2 * (48 * (10 + 7) + 2 * 10 * 7)

COSTS = [
    # Based, eq. 10: keys and values of all slots, and a position. FLOPs: four kernels, scores and values of 16 keys.
    (AttentionConfig(d_model=12, n_heads=3), 4 * 2 * 12 * C + 4, None, {}),
    (AttentionConfig(d_model=12, n_heads=3, n_kv_heads=1), 4 * 2 * 4 * C + 4, None, {}),
    (AttentionConfig(d_model=8, n_heads=2, n_kv_heads=1), None, None, {16: 2 * (64 + 32 + 32 + 64) + 2 * 2 * 8 * 16}),
    (BaseConvConfig(d_model=10, n_taps=4), None, None, {50: 2 * 100 + 2 * 4 * 10}),
    (BaseConvConfig(d_model=10, filter="long", n_taps=64), None, None, {8: 200 + 10 * fft(15, 8)}),
    # 12 slots of three blocks. At 64 tokens 8 blocks of 4 keys; at 6 two blocks, 8 queries for 6 tokens.
    (
        BigBirdConfig(d_model=8, n_heads=2, block_size=4),
        4 * 12 * 16 + 4,
        None,
        {64: 8 * 64 + 4 * 8 * 32, 6: 8 * 64 + 4 * 8 * 8 * 8 / 6},
    ),
    # One block of keys, or two with look_back; 15 tokens are 3 blocks of 7 too.
    *(
        (
            BlockedWindowAttentionConfig(d_model=12, n_heads=2, block_size=7, look_back=n == 2),
            4 * 2 * 12 * 7 * n + 4,
            None,
            {21: 8 * 144 + 4 * 12 * 7 * n, 15: 8 * 144 + 4 * 12 * 7 * n * 21 / 15, 5: 8 * 144 + 4 * 12 * 5},
        )
        for n in (1, 2)
    ),
    # Histories of 4 inputs for each part with a filter.
    (
        ConvolutionAugmentedAttentionConfig(**CAT, filter_keys=False),
        4 * (2 * C * 12 + 2 * 4 * 12) + 4,
        None,
        {100: CAT_FLOPS + 2 * 2 * 5 * 12},
    ),
    (ConvolutionAugmentedAttentionConfig(**CAT, filters="mixing"), None, None, {100: CAT_FLOPS + 3 * 2 * 5 * 4 * 9}),
    (ConvolutionAugmentedAttentionConfig(**CAT, filters="maps"), None, None, {100: CAT_FLOPS + 2 * 5 * 9 * 100}),
    (
        ConvolutionAugmentedAttentionConfig(**CAT, normalize=True),
        4 * (2 * C * 12 + 4 * 12) + 4,
        None,
        {100: CAT_FLOPS + 2 * 5 * 12 * 9},
    ),
    # 2 heads of keys of 3 and values of 5; two inputs of the 22 convolved channels, in the dtype of activations.
    (
        DeltaNetConfig(d_model=8, n_heads=2, key_width=6, value_width=10, n_taps=3),
        4 * (2 * 3 * 5 + 2 * 22),
        4 * 2 * 3 * 5 + 2 * 2 * 22,
        {10: 2 * 8 * (6 + 6 + 10 + 2 + 10) + 22 * 2 * 3 + 2 * 10 * (2 * 6 + 2 * 10) + 6 * 3 * 10},
    ),
    # The same with gates; the general form has twice as many scores, and two updates of the state.
    (
        CombaConfig(**DELTA),
        4 * (30 + 2 * 22),
        4 * 30 + 2 * 2 * 22,
        {10: 2 * 8 * (22 + 2 + 2 + 10 + 10) + 22 * 2 * 3 + GENERAL},
    ),
    # Erasing gates like keys, writing gates like values; two maps of rank 5.
    (
        GatedDeltaNet2Config(**DELTA),
        4 * (30 + 2 * 22),
        4 * 30 + 2 * 2 * 22,
        {10: 2 * 8 * (22 + 6 + 10 + 10) + 2 * 5 * (8 + 6 + 8 + 10) + 22 * 2 * 3 + GENERAL},
    ),
    # Two keys, values and betas per token, which are two tokens of a chunk.
    (
        GatedDeltaProductConfig(**DELTA, n_updates=2),
        4 * (30 + 2 * 38),
        4 * 30 + 2 * 2 * 38,
        {10: 2 * 8 * (38 + 4 + 2 + 10 + 10) + 38 * 2 * 3 + 2 * (2 * 20 * (2 * 6 + 2 * 10) + 6 * 3 * 10)},
    ),
    # Scores and values of all keys; three gates, two shares, the output gate. Sums of gates, and the last k and v.
    (
        ForgettingAttentionConfig.pro(d_model=12, n_heads=3, n_kv_heads=1),
        4 * (2 * 4 * C + 3 * C + 2 * 4) + 4,
        2 * (2 * 4 * C + 2 * 4) + 4 * 3 * C + 4,
        {16: 2 * 12 * (12 + 4 + 4 + 12) + 2 * 12 * (3 + 2 + 12) + 4 * 12 * 16},
    ),
    # 2 heads of keys with 5 slots of keys of 3 and values of 5; slots read in chunks of 16 and 64.
    (
        GatedSlotAttentionConfig(d_model=8, n_heads=4, n_kv_heads=2, key_width=12, value_width=20, n_slots=5),
        4 * (2 * 3 * 5 + 2 * 5 * 5) + 4,
        None,
        {64: 2 * 8 * (12 + 6 + 10 + 10 + 20) + 2 * 16 * (12 + 20) + 2 * 64 * (20 + 20) + 4 * 5 * (12 + 20)},
    ),
    # One sum of logits per slot.
    (
        GatedSlotAttentionConfig.abc(d_model=8, n_heads=2, n_slots=5),
        4 * (2 * 2 * 5 + 2 * 5 * 4 + 2 * 5) + 4,
        None,
        {64: 2 * 8 * (4 + 4 + 8 + 10 + 8 + 8) + 2 * 16 * (4 + 10) + 2 * 64 * (10 + 8) + 4 * 5 * (4 + 8)},
    ),
    # 2 heads of 4 x 8; keys 8, values 16, rank 3.
    (
        GatedLinearAttentionConfig(d_model=16, n_heads=2, decay_rank=3),
        4 * 2 * 4 * 8,
        None,
        {10: 2 * 16 * (8 + 8 + 16 + 16 + 16) + 2 * 3 * (16 + 8) + 2 * 10 * 24 + 4 * 2 * 4 * 8},
    ),
    (GatedShortConvConfig(d_model=10), None, None, {100: 2 * 10 * 40 + 2 * 20 * 10 + 2 * 3 * 20}),
    (GatedShortConvConfig.lfm2(d_model=10), None, None, {100: 2 * 10 * 30 + 2 * 10 * 10 + 2 * 3 * 10}),
    # 3 heads of 2 x 2 products of 4 complex numbers, and 8 keys of 6.
    (
        H3Config(d_model=6, d_state=8, head_dim=2),
        4 * (3 * 4 * 4 * 2 + 8 * 6),
        4 * (3 * 4 * 4 * 2 + 8 * 6),
        {100: 8 * 36 + 6 * 2 * 8 + 12 * fft(200, 100) + 2 * 12},
    ),
    (HGRNConfig(d_model=6, inner_width=10), 4 * 10, 4 * 10, {100: 2 * 6 * 40 + 2 * 10}),
    *(
        full(
            HyenaConfig(d_model=10, order=3, form=form, n_taps=64),
            4 * (2 * 40 + n * 63 * 10),
            None,
            {8: 2 * 10 * 50 + 40 * 6 + n * 10 * fft(15, 8)},
        )
        for form, n in (("paper", 3), ("release", 2))
    ),
    (InputDependentConvConfig(d_model=10), None, None, {9: 200 + 10 * fft(18, 9)}),
    (
        InputDependentConvConfig(d_model=10, filter="autocorrelation", taps="correlations", correlate="projection"),
        None,
        None,
        {9: 400 + 1.5 * 10 * fft(18, 9)},
    ),
    # 12 slots of keys and values, 3 landmarks, two histories of 2 inputs. At 64 tokens 15 landmarks of 60 keys.
    (
        LandmarkCATConfig(d_model=12, n_heads=3, block_size=4),
        4 * (24 * 12 + 3 * 12 + 4 * 12) + 4,
        None,
        {
            64: 2 * 4 * 144 + 2 * 3 * 24 + 2 * 12 * 15 + 2 * 12 * 60 / 64 + 4 * 12 * (4 + 4),
            3: 2 * 4 * 144 + 2 * 3 * 24 + 4 * 12 * 3,
        },
    ),
    # Vectors of 2, and 2 rotated channels. FLOPs: queries of 6, vectors, keys and values of 4, output.
    (
        LatentAttentionConfig(d_model=8, n_heads=2),
        4 * (2 + 2) * C + 4,
        2 * (2 + 2) * C + 4,
        {16: 2 * (8 * 12 + 8 * 4 + 2 * 16 + 8 * 8) + 2 * 16 * 2 * (6 + 4)},
    ),
    (
        LatentAttentionConfig(d_model=8, n_heads=2, q_rank=3, rope_dim=4),
        4 * (2 + 4) * C + 4,
        None,
        {16: 2 * (3 * (8 + 16) + 8 * 6 + 2 * 16 + 8 * 8) + 2 * 16 * 2 * (8 + 4)},
    ),
    # 3 heads of 4 x 4; chunks of 64.
    (LightningAttentionConfig(d_model=12, n_heads=3), 4 * 48, 4 * 48, {100: 10 * 144 + 4 * 64 * 12 + 4 * 48}),
    # 3 heads, 5 features, values of 4; queries and values filtered by 4 taps.
    (
        LinCATConfig(d_model=12, n_heads=3, feature_dim=5, n_taps=4, filter_keys=False),
        4 * (3 * 5 * 4 + 3 * 5 + 1 + 3 * 3 * 5 + 3 * 3 * 4),
        None,
        {64: 2 * 12 * 3 * 18 + 2 * 4 * 3 * 9 + 2 * 3 * 64 * 9},
    ),
    # Based, App. E.2, eq. 8: (d + 1) f entries; more heads add a denominator each. A chunk of 64, then sums.
    *(
        (LinearAttentionConfig(d_model=64, n_heads=h, **options), 4 * (64 + h) * f + position, None, {})
        for h in (1, 4)
        for options, f, position in (
            ({"feature_map": "cosformer", "n_positions": 8}, 32, 4),
            ({"feature_map": "taylor"}, 153, 0),
            ({"feature_map": "taylor_full"}, 273, 0),
            ({"feature_map": "performer", "n_features": 24}, 24, 0),
            ({"feature_map": "exp", "mirrored": True}, 32, 0),
            ({"feature_map": "rebased"}, 136, 0),
        )
    ),
    (LinearAttentionConfig(d_model=64, n_heads=4, normalize=False), 4 * 64 * 16, None, {}),
    (
        LinearAttentionConfig(**PERFORMER, feature_map="performer"),
        None,
        None,
        {64: MAPS + CHUNK, 128: MAPS + CHUNK + SUMS, 96: MAPS + (CHUNK + SUMS) * 128 / 96},
    ),
    (
        LinearAttentionConfig(**PERFORMER, feature_map="all_poly", output_scaling=True),
        None,
        None,
        {64: MAPS + CHUNK + 2 * 2 * (2 * 2 * 6) + 2 * 8 * 2},
    ),
    (
        LinearAttentionConfig(d_model=8, n_heads=2, feature_dim=2, causal=False, normalize=False),
        None,
        None,
        {50: 2 * 8 * (4 + 4 + 8 + 8) + 2 * 2 * (2 * 2 * 4)},
    ),
    # 4 complex numbers a channel; products of order 3 need two inputs.
    (LiquidS4Config(d_model=6, d_state=8), 4 * 6 * 4 * 2, None, {100: 4 * 36 + 16 * 6 * 4}),
    *(
        full(
            LiquidS4Config(d_model=6, d_state=8, liquid=liquid, order=3),
            4 * 6 * 4 * 2 + 4 * 2 * 6,
            4 * 6 * 4 * 2 + 2 * 2 * 6,
            {100: 4 * 36 + n * 6 * fft(200, 100)},
        )
        for liquid, n in (("kb", 3), ("pb", 1))
    ),
    (LongConvConfig(d_model=10, n_taps=64, n_channels=2), 4 * 63 * 10, None, {8: 20 * fft(15, 8) + 2 * 20 * 20}),
    # 12 inner channels with 4 numbers each, and three inputs of the convolution.
    (
        MambaConfig(d_model=6, d_state=4, dt_rank=2),
        4 * (12 * 4 + 3 * 12),
        4 * 12 * 4 + 2 * 3 * 12,
        {100: 2 * (6 * 24 + 12 * (2 + 8) + 2 * 12 + 12 * 6) + 2 * 4 * 12 + 6 * 12 * 4},
    ),
    # 4 heads of 3 inner channels, 2 groups of 5.
    (
        Mamba2Config(d_model=6, d_state=5, head_dim=3, n_groups=2),
        4 * (4 * 5 * 3 + 3 * 32),
        4 * 60 + 2 * 3 * 32,
        {10: 2 * 6 * (12 + 32 + 4 + 12) + 32 * 2 * 4 + 2 * 10 * (5 * 4 + 12) + 4 * 5 * 12},
    ),
    # 4 heads of 3 channels, states of 4, one angle. FLOPs: two writes of a token, and their chunk.
    (
        Mamba3Config(d_model=6, d_state=4, head_dim=3),
        4 * (4 + 4 * 4 * 3 + 4 * 4 + 12),
        4 * (4 + 48) + 2 * (16 + 12),
        {100: 2 * 6 * (12 + 12 + 4 + 4 + 3 * 4 + 1 + 12) + 2 * (2 * 64 * (4 * 4 + 12) + 4 * 4 * 12)},
    ),
    # Two keys per head and group: four writes and a read.
    (
        Mamba3Config(d_model=6, d_state=4, head_dim=3, n_groups=2, rank=2),
        4 * (4 + 48 + 2 * 16 + 12),
        None,
        {100: 2 * 6 * (12 + 12 + 16 + 16 + 3 * 4 + 1 + 12) + 5 * (2 * 64 * (4 * 4 + 12) + 4 * 4 * 12)},
    ),
    # 2 heads of 4; q and k convolved. FLOPs: five products and the output read sums of 4 x 4 and a chunk.
    (
        MesaNetConfig(d_model=8, n_heads=2, n_steps=5),
        4 * (3 * 16 + 2 * 32),
        4 * 64 + 2 * 48,
        {10: 2 * 8 * (4 * 8 + 2 * 2) + 16 * 2 * 4 + 6 * (4 * 10 * 8 + 4 * 32)},
    ),
    # 2 heads of 8 x 8, their normalisers and maxima, and three inputs of 16 channels. FLOPs: blocks of 4.
    (
        MLSTMConfig(d_model=8, n_heads=2),
        4 * (3 * 16 + 128 + 16 + 2),
        4 * 146 + 2 * 48,
        {100: 2 * 8 * 48 + 3 * 2 * 16 * 4 + 2 * 48 * 4 + 16 * 2 * 4 + 2 * 64 * 32 + 4 * 128},
    ),
    (
        MLSTMConfig(d_model=8, n_heads=2, form="7b"),
        4 * (2 * 2 * 4 + 4 + 2),
        4 * 22,
        {100: 2 * 8 * (4 + 4 + 8 + 8 + 4 + 8) + 2 * 64 * 12 + 4 * 16},
    ),
    # 12 slots, 3 block means of keys. At 64 tokens 15 means, the own block and two more.
    (
        MoBAConfig(d_model=8, n_heads=2, n_kv_heads=1, block_size=4, n_selected=3),
        4 * (2 * 12 * 4 + 3 * 4) + 4,
        2 * 2 * 12 * 4 + 4 * 3 * 4 + 4,
        {64: 2 * 192 + 2 * 8 * 15 + 4 * 8 * 12},
    ),
    # Keys and values, not their products.
    (
        MultiHeadHyenaConfig(d_model=12, n_heads=3, n_taps=64),
        4 * (2 * 36 + 2 * 63 * 12),
        None,
        {8: 2 * 12 * 48 + 36 * 6 + 48 * (fft(15, 8) + 3)},
    ),
    # Means of keys and values. Three gates; 16 means, scored twice; two blocks of own keys, two more, windows of 6.
    (
        NativeSparseAttentionConfig(d_model=8, n_heads=2, n_kv_heads=1, block_size=4, n_selected=3, window=6),
        4 * (2 * 12 * 4 + 2 * 3 * 4) + 4,
        2 * 2 * 12 * 4 + 4 * 2 * 3 * 4 + 4,
        {64: 2 * 192 + 2 * 8 * 6 + 6 * 8 * 16 + 4 * 8 * (8 + 8 + 66 * 12 / 64)},
    ),
    # Tokens with landmarks four times; among landmarks 3 iterations of four products; 5 taps over 66 inputs.
    (
        NystromFormerConfig(d_model=8, n_heads=2, n_landmarks=4, n_iterations=3, n_taps=5),
        None,
        None,
        {64: 8 * 64 + 2 * 4 * 2 * 16 + 2 * (2 * 2 * 64 + 3 * 4 * 2 * 64) / 64 + 8 * 2 * 5 * 66 / 64},
    ),
    (NystromFormerConfig(d_model=8, n_heads=2, n_landmarks=64, n_taps=0), None, None, {16: 8 * 64 + 4 * 8 * 16}),
    # Turned keys in float32, values, two inputs of 8 directions. FLOPs: directions of rank 3, betas, convolution; in
    # a chunk directions with themselves and queries; with all keys queries, values and directions.
    (
        PathAttentionConfig(d_model=8, n_heads=2, w_rank=3),
        4 * (16 * C + 2 * 8) + 4,
        4 * 8 * C + 2 * (8 * C + 2 * 8) + 4,
        {10: 8 * 64 + 2 * 3 * 16 + 2 * 8 * 2 + 8 * 6 + 2 * 10 * 4 * 4 + 2 * 10 * 8 * 4 + 2 * 10 * 10 * 4},
    ),
    (
        PathAttentionConfig(d_model=8, n_heads=2, n_kv_heads=1, w_rank=3, forget_gate=True),
        4 * (2 * 4 * C + 2 * C + 2 * 4) + 4,
        None,
        {10: 2 * 192 + 2 * 3 * 12 + 2 * 8 * (1 + 2) + 4 * 6 + 2 * 10 * 3 * 4 + 2 * 10 * 6 * 4 + 2 * 10 * 10 * 3},
    ),
    # 2 heads of 6 x 10 and a position; chunks of 8.
    (
        RetNetConfig(d_model=12, n_heads=2, value_width=20, chunk_size=8),
        4 * 2 * 6 * 10 + 4,
        None,
        {100: 2 * 12 * (24 + 60) + 2 * 8 * 32 + 4 * 6 * 20},
    ),
    # One input, and three float32 numbers a channel.
    (RWKV4TimeMixConfig(d_model=6, value_width=10), 4 * 36, 2 * 6 + 4 * 30, {100: 2 * 4 * 60 + 2 * 6 * 10}),
    (RWKV4ChannelMixConfig(d_model=6), 4 * 6, 2 * 6, {100: 2 * (6 * 24 + 24 * 6 + 6 * 6)}),
    (
        RWKV5TimeMixConfig(d_model=6, n_heads=3, value_width=15),
        4 * (6 + 75),
        2 * 6 + 4 * 75,
        {100: 2 * 5 * 90 + 2 * 64 * 30 + 4 * 75 + 6 * 15},
    ),
    # Released count 2 w d + (d + h) f, and a position. At 48 tokens blocks of 16 meet 32 keys.
    (
        ScatterBrainConfig(d_model=12, n_heads=2, window=7, n_features=10),
        4 * (2 * 7 * 12 + (12 + 2) * 10) + 4,
        None,
        {48: 8 * 144 + 4 * 12 * 32 + FAR, 7: 8 * 144 + 4 * 12 * 7},
    ),
    # Keys, values and ids of all slots. Learned: queries, outputs and scores of 16 of 64 tokens.
    (
        SelectiveAttentionConfig(d_model=8, n_heads=2, selection="programmatic"),
        4 * C * (16 + 1) + 4,
        None,
        {64: 8 * 64 + 4 * 8 * 64},
    ),
    (
        SelectiveAttentionConfig(d_model=8, n_heads=2, n_selected=16),
        None,
        None,
        {64: 4 * 64 + 0.25 * (4 * 64 + 4 * 8 * 64) + 16},
    ),
    # Based, eq. 11: a ring of keys and values, and a position; blocks of 16 queries meet 32 keys.
    (SlidingWindowAttentionConfig(d_model=12, n_heads=2, n_kv_heads=1, window=7), 4 * 12 * 7 + 4, None, {}),
    (SlidingWindowAttentionConfig(d_model=8, n_heads=2, window=16), None, None, {64: 2 * 4 * 64 + 2 * 2 * 8 * 32}),
    # Based, eq. 9; 6 features, chunks of 10.
    (TaylorLinearAttentionConfig(d_model=64), 4 * 65 * 153, 4 * 65 * 153, {}),
    (
        TaylorLinearAttentionConfig(d_model=8, n_heads=2, n_kv_heads=1, feature_dim=2, chunk_size=10),
        None,
        None,
        {5: 2 * 8 * 18 + 2 * (2 * 5 * 2 + 2 * 5 * 5), 40: 2 * 8 * 18 + 2 * 10 * 2 * (2 + 5) + 2 * 2 * 2 * 6 * 5},
    ),
    # 2 heads of weights 4 x 4 and biases, changes and sums. FLOPs: four products, scores of 5 tokens.
    (
        TTTConfig(d_model=8, n_heads=2, mini_batch=5),
        4 * 2 * 2 * (16 + 4) + 4,
        4 * 2 * 2 * (16 + 4) + 4,
        {100: 2 * 8 * (4 * 8 + 2) + 2 * (4 * 2 * 16 + 2 * 2 * 5 * 4)},
    ),
    # Weights 4 x 16 and 16 x 4: four products each, and one more for the hidden gradient.
    (
        TTTConfig(d_model=8, n_heads=2, mini_batch=5, inner="mlp", gate=True),
        4 * 2 * 2 * (64 + 16 + 64 + 4) + 4,
        None,
        {100: 2 * 8 * (5 * 8 + 2) + 2 * (9 * 2 * 64 + 2 * 2 * 5 * (4 + 16))},
    ),
]
"""Config, bytes of the state of one row, the same with bfloat16 activations, and FLOPs per token by length."""


@pytest.mark.parametrize(
    ("config", "state", "bfloat16_state", "flops"),
    COSTS,
    ids=lambda x: type(x).__name__.removesuffix("Config") if hasattr(x, "d_model") else "",
)
def test_costs_by_hand(config, state, bfloat16_state, flops):
    if state is not None:
        assert state_bytes(abstract_mixer(config), capacity=C) == state
    if bfloat16_state is not None:
        assert state_bytes(abstract_mixer(config), capacity=C, dtype=jnp.bfloat16) == bfloat16_state
    assert {length: config.flops_per_token(length) for length in flops} == pytest.approx(flops)


def test_papers_state_sizes():
    """Kills a paper's count that is taken from our arrays."""
    assert H3Config(d_model=6, d_state=8, head_dim=2).papers_state_size(100) == 6 * 8
    assert MambaConfig(d_model=6, d_state=4, dt_rank=2).papers_state_size(100) == 2 * 6 * 4
    assert LinearAttentionConfig(d_model=64, feature_map="taylor").papers_state_size(100) == 65 * 153
    assert LinearAttentionConfig(d_model=8, causal=False).papers_state_size(50) is None
