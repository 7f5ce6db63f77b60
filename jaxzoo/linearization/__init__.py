"""Conversion of softmax attention into mixers with a state of fixed size, in the two stages of LoLCATs.

Zhang et al. 2024, arXiv 2410.10254: (1) transfer, layer by layer: the new mixer starts with the projections of
attention and learns its outputs; (2) finetuning of the model, by the ordinary trainer. `jaxzoo linearize`
does both.
"""

MIXERS = ("based", "hedgehog", "gated-delta-net")
"""New mixers: Taylor features after a window; softmax features, by default without a window; Gated DeltaNet."""
