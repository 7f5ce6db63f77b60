"""Compiles every kernel ahead of time for absent GPUs and TPUs: `python -m pallas_kernels.compile_check`.

Each workload is compiled through the public API in its own process (`run.py`); messages of the compilers are parsed
(`compiler_text.py`) and checked (`report.py`).
"""
