"""Correct first, then timed: `python -m pallas_kernels.benchmark OP`; `--help` lists ops and options.

A row of the result is one workload by one candidate: an implementation of this repository, another form of the same
function, or a public peer. What a number means:

- *error*: relative L2 of every output and gradient of the program that is timed, on its own inputs, against float64,
  over rows of the batch spread from the first to the last, all tokens and heads (`checks.py`). The outputs go to
  buffers full of NaN. A candidate that misses its tolerance is "wrong" and not timed.
- *ms*: median over repeats of the time of a call, with its tenth and ninetieth percentile; compilation excluded. A
  call is part of a program, and programs are enqueued until a batch takes long enough, before the host waits once.
  Small calls on an accelerator share a program (`programs.py`; peers in torch: a CUDA graph), so that a launch from
  Python, 10 us or more, is not counted as work of the kernel; what lies between kernels of a program is. Input sets
  rotate, so that a call finds its inputs in the memory and not in a cache, where the sets are large enough.
- *of floor*: max(FLOPs / peak, bytes / bandwidth) / ms, with the workload's FLOPs and bytes and with both ceilings
  measured in the same run (`ceilings.py`). Empty for another function, as softmax attention is.
- *temp*: what the compiled program allocates in addition to inputs and outputs; of a peer in torch, the peak of a
  call without its inputs, outputs included.
"""
