"""Every kernel, compiled ahead of time for GPUs and TPUs on a machine that has neither.

    python -m pallas_kernels.compile_check

A workload goes through the public API to machine code, each in a process of its own (`worker.py`), for each target
(`targets.py`); what the compilers said about its kernels is read (`compiler_text.py`) and judged (`report.py`).
"""
