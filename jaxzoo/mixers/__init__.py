"""Mixers, in families. One import line and one entry in `MIXERS` register a mixer.

The command line, the contract's tests, the gallery and the benchmarks read `MIXERS`. A mixer of another package needs
no entry: every `MixerConfig` builds its own mixer.
"""

from jaxzoo.mixers.attention.big_bird import BigBird as BigBird, BigBirdConfig as BigBirdConfig
from jaxzoo.mixers.attention.blocked_window_attention import (
    BlockedWindowAttention as BlockedWindowAttention,
    BlockedWindowAttentionConfig as BlockedWindowAttentionConfig,
)
from jaxzoo.mixers.attention.convolution_augmented_attention import (
    ConvolutionAugmentedAttention as ConvolutionAugmentedAttention,
    ConvolutionAugmentedAttentionConfig as ConvolutionAugmentedAttentionConfig,
)
from jaxzoo.mixers.attention.forgetting_attention import (
    ForgettingAttention as ForgettingAttention,
    ForgettingAttentionConfig as ForgettingAttentionConfig,
)
from jaxzoo.mixers.attention.landmark_cat import LandmarkCAT as LandmarkCAT, LandmarkCATConfig as LandmarkCATConfig
from jaxzoo.mixers.attention.latent_attention import (
    LatentAttention as LatentAttention,
    LatentAttentionConfig as LatentAttentionConfig,
)
from jaxzoo.mixers.attention.moba import MoBA as MoBA, MoBAConfig as MoBAConfig
from jaxzoo.mixers.attention.native_sparse_attention import (
    NativeSparseAttention as NativeSparseAttention,
    NativeSparseAttentionConfig as NativeSparseAttentionConfig,
)
from jaxzoo.mixers.attention.nystromformer import (
    NystromFormer as NystromFormer,
    NystromFormerConfig as NystromFormerConfig,
)
from jaxzoo.mixers.attention.path_attention import (
    PathAttention as PathAttention,
    PathAttentionConfig as PathAttentionConfig,
)
from jaxzoo.mixers.attention.scatter_brain import ScatterBrain as ScatterBrain, ScatterBrainConfig as ScatterBrainConfig
from jaxzoo.mixers.attention.selective_attention import (
    SelectiveAttention as SelectiveAttention,
    SelectiveAttentionConfig as SelectiveAttentionConfig,
)
from jaxzoo.mixers.attention.sliding_window_attention import (
    SlidingWindowAttention as SlidingWindowAttention,
    SlidingWindowAttentionConfig as SlidingWindowAttentionConfig,
)
from jaxzoo.mixers.attention.softmax_attention import Attention as Attention, AttentionConfig as AttentionConfig
from jaxzoo.mixers.base import (
    Capabilities as Capabilities,
    Context as Context,
    Mixer as Mixer,
    MixerConfig as MixerConfig,
    state_bytes as state_bytes,
)
from jaxzoo.mixers.conv.base_conv import BaseConv as BaseConv, BaseConvConfig as BaseConvConfig
from jaxzoo.mixers.conv.gated_short_conv import (
    GatedShortConv as GatedShortConv,
    GatedShortConvConfig as GatedShortConvConfig,
)
from jaxzoo.mixers.conv.hyena import Hyena as Hyena, HyenaConfig as HyenaConfig
from jaxzoo.mixers.conv.input_dependent_conv import (
    InputDependentConv as InputDependentConv,
    InputDependentConvConfig as InputDependentConvConfig,
)
from jaxzoo.mixers.conv.long_conv import LongConv as LongConv, LongConvConfig as LongConvConfig
from jaxzoo.mixers.conv.multi_head_hyena import (
    MultiHeadHyena as MultiHeadHyena,
    MultiHeadHyenaConfig as MultiHeadHyenaConfig,
)
from jaxzoo.mixers.linear.comba import Comba as Comba, CombaConfig as CombaConfig
from jaxzoo.mixers.linear.delta_net import DeltaNet as DeltaNet, DeltaNetConfig as DeltaNetConfig
from jaxzoo.mixers.linear.feature_map_attention import (
    LinearAttention as LinearAttention,
    LinearAttentionConfig as LinearAttentionConfig,
)
from jaxzoo.mixers.linear.gated_delta_net import (
    GatedDeltaNet as GatedDeltaNet,
    GatedDeltaNetConfig as GatedDeltaNetConfig,
)
from jaxzoo.mixers.linear.gated_delta_net2 import (
    GatedDeltaNet2 as GatedDeltaNet2,
    GatedDeltaNet2Config as GatedDeltaNet2Config,
)
from jaxzoo.mixers.linear.gated_delta_product import (
    GatedDeltaProduct as GatedDeltaProduct,
    GatedDeltaProductConfig as GatedDeltaProductConfig,
)
from jaxzoo.mixers.linear.gated_linear_attention import (
    GatedLinearAttention as GatedLinearAttention,
    GatedLinearAttentionConfig as GatedLinearAttentionConfig,
)
from jaxzoo.mixers.linear.gated_slot_attention import (
    GatedSlotAttention as GatedSlotAttention,
    GatedSlotAttentionConfig as GatedSlotAttentionConfig,
)
from jaxzoo.mixers.linear.hgrn import HGRN as HGRN, HGRNConfig as HGRNConfig
from jaxzoo.mixers.linear.hgrn2 import HGRN2 as HGRN2, HGRN2Config as HGRN2Config
from jaxzoo.mixers.linear.kimi_delta_attention import (
    KimiDeltaAttention as KimiDeltaAttention,
    KimiDeltaAttentionConfig as KimiDeltaAttentionConfig,
)
from jaxzoo.mixers.linear.lightning_attention import (
    LightningAttention as LightningAttention,
    LightningAttentionConfig as LightningAttentionConfig,
)
from jaxzoo.mixers.linear.lin_cat import LinCAT as LinCAT, LinCATConfig as LinCATConfig
from jaxzoo.mixers.linear.mesa_net import MesaNet as MesaNet, MesaNetConfig as MesaNetConfig
from jaxzoo.mixers.linear.mlstm import MLSTM as MLSTM, MLSTMConfig as MLSTMConfig
from jaxzoo.mixers.linear.ret_net import RetNet as RetNet, RetNetConfig as RetNetConfig
from jaxzoo.mixers.linear.rwkv4 import RWKV4TimeMix as RWKV4TimeMix, RWKV4TimeMixConfig as RWKV4TimeMixConfig
from jaxzoo.mixers.linear.rwkv4_channel_mix import (
    RWKV4ChannelMix as RWKV4ChannelMix,
    RWKV4ChannelMixConfig as RWKV4ChannelMixConfig,
)
from jaxzoo.mixers.linear.rwkv5 import RWKV5TimeMix as RWKV5TimeMix, RWKV5TimeMixConfig as RWKV5TimeMixConfig
from jaxzoo.mixers.linear.rwkv6 import RWKV6TimeMix as RWKV6TimeMix, RWKV6TimeMixConfig as RWKV6TimeMixConfig
from jaxzoo.mixers.linear.rwkv7 import RWKV7TimeMix as RWKV7TimeMix, RWKV7TimeMixConfig as RWKV7TimeMixConfig
from jaxzoo.mixers.linear.rwkv7_channel_mix import (
    RWKV7ChannelMix as RWKV7ChannelMix,
    RWKV7ChannelMixConfig as RWKV7ChannelMixConfig,
)
from jaxzoo.mixers.linear.taylor_linear_attention import (
    TaylorLinearAttention as TaylorLinearAttention,
    TaylorLinearAttentionConfig as TaylorLinearAttentionConfig,
)
from jaxzoo.mixers.linear.ttt import TTT as TTT, TTTConfig as TTTConfig
from jaxzoo.mixers.linear.windowed_linear_attention import (
    WindowedLinearAttention as WindowedLinearAttention,
    WindowedLinearAttentionConfig as WindowedLinearAttentionConfig,
)
from jaxzoo.mixers.ssm.h3 import H3 as H3, H3Config as H3Config
from jaxzoo.mixers.ssm.liquid_s4 import LiquidS4 as LiquidS4, LiquidS4Config as LiquidS4Config
from jaxzoo.mixers.ssm.mamba import Mamba as Mamba, MambaConfig as MambaConfig
from jaxzoo.mixers.ssm.mamba2 import Mamba2 as Mamba2, Mamba2Config as Mamba2Config
from jaxzoo.mixers.ssm.mamba3 import Mamba3 as Mamba3, Mamba3Config as Mamba3Config
from jaxzoo.mixers.ssm.rg_lru import RGLRU as RGLRU, RGLRUConfig as RGLRUConfig

MIXERS: dict[str, type[MixerConfig]] = {
    "attention": AttentionConfig,
    "base_conv": BaseConvConfig,
    "big_bird": BigBirdConfig,
    "blocked_window_attention": BlockedWindowAttentionConfig,
    "comba": CombaConfig,
    "convolution_augmented_attention": ConvolutionAugmentedAttentionConfig,
    "delta_net": DeltaNetConfig,
    "forgetting_attention": ForgettingAttentionConfig,
    "gated_delta_net": GatedDeltaNetConfig,
    "gated_delta_net2": GatedDeltaNet2Config,
    "gated_delta_product": GatedDeltaProductConfig,
    "gated_linear_attention": GatedLinearAttentionConfig,
    "gated_short_conv": GatedShortConvConfig,
    "gated_slot_attention": GatedSlotAttentionConfig,
    "h3": H3Config,
    "hgrn": HGRNConfig,
    "hgrn2": HGRN2Config,
    "hyena": HyenaConfig,
    "input_dependent_conv": InputDependentConvConfig,
    "kimi_delta_attention": KimiDeltaAttentionConfig,
    "landmark_cat": LandmarkCATConfig,
    "latent_attention": LatentAttentionConfig,
    "lightning_attention": LightningAttentionConfig,
    "lin_cat": LinCATConfig,
    "linear_attention": LinearAttentionConfig,
    "liquid_s4": LiquidS4Config,
    "long_conv": LongConvConfig,
    "mamba": MambaConfig,
    "mamba2": Mamba2Config,
    "moba": MoBAConfig,
    "mamba3": Mamba3Config,
    "mesa_net": MesaNetConfig,
    "mlstm": MLSTMConfig,
    "multi_head_hyena": MultiHeadHyenaConfig,
    "native_sparse_attention": NativeSparseAttentionConfig,
    "nystromformer": NystromFormerConfig,
    "path_attention": PathAttentionConfig,
    "ret_net": RetNetConfig,
    "rg_lru": RGLRUConfig,
    "rwkv4_channel_mix": RWKV4ChannelMixConfig,
    "rwkv4_time_mix": RWKV4TimeMixConfig,
    "rwkv5_time_mix": RWKV5TimeMixConfig,
    "rwkv6_time_mix": RWKV6TimeMixConfig,
    "rwkv7_channel_mix": RWKV7ChannelMixConfig,
    "rwkv7_time_mix": RWKV7TimeMixConfig,
    "scatter_brain": ScatterBrainConfig,
    "selective_attention": SelectiveAttentionConfig,
    "sliding_window_attention": SlidingWindowAttentionConfig,
    "taylor_linear_attention": TaylorLinearAttentionConfig,
    "ttt": TTTConfig,
    "windowed_linear_attention": WindowedLinearAttentionConfig,
}
"""Mapping from mixer names to configs."""
