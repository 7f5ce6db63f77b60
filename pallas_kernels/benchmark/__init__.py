"""Checks and times an op: `python -m pallas_kernels.benchmark OP`; `--help` lists ops and options.

A row of the result is one workload with one candidate. Columns:

- *error*: largest relative L2 of outputs and gradients against float64, in rows of the batch from first to last. A
  candidate that misses its tolerance is "wrong" and not timed.
- *ms*: median time of a call, with its 10th and 90th percentile. Small calls on an accelerator share a program, which
  excludes the 10 us or more of a launch from Python. Input sets rotate, so that inputs do not come from a cache.
- *of floor*: max(FLOPs / peak, bytes / bandwidth) / ms, with both ceilings measured in the same run.
- *temp*: memory of the compiled program beyond inputs and outputs.
"""
