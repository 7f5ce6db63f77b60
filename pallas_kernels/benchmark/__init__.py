"""Checks and times an op: `python -m pallas_kernels.benchmark OP`; `--help` lists ops and options.

A row of the result is one workload with one candidate: an implementation of this repository, another form of the same
function, or a public peer. Columns:

- *error*: relative L2 of every output and gradient of the program that is timed, on its own inputs, against float64,
  over rows of the batch spread from the first to the last, all tokens and heads (`checks.py`). The outputs go to
  buffers full of NaN. A candidate that misses its tolerance is "wrong" and not timed.
- *ms*: median over repeats of the time of a call, with its 10th and 90th percentile, without compilation. A call is
  part of a program, and programs are enqueued until a batch takes long enough, before the host waits once. Small calls
  on an accelerator share a program (`programs.py`; peers in torch: a CUDA graph), which excludes the 10 us or more of a
  launch from Python, but includes gaps between kernels. Input sets rotate, so that inputs do not come from a cache.
- *of floor*: max(FLOPs / peak, bytes / bandwidth) / ms, with the workload's FLOPs and bytes and with both ceilings
  measured in the same run (`ceilings.py`). Empty for other functions, such as softmax attention.
- *temp*: memory of the compiled program beyond inputs and outputs; of a peer in torch, the peak of a call without
  inputs, with outputs.
"""
