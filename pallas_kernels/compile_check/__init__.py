"""Compiles every kernel ahead of time for absent GPUs and TPUs: `python -m pallas_kernels.compile_check`.

Each workload is compiled through the public API in its own process, for each target (`run.py`, `targets.py`). The
compilers' messages about its kernels are parsed and checked (`compiler_text.py`, `report.py`).
"""
