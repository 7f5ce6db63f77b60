"""Speed of kernels as predicted from the compilers' own schedules, without a device.

For TPUs libtpu prints its final bundles (`bundles.py`); for Hopper GPUs the machine code (`sass.py`) and the lowered
module (`launch.py`) go through a timing model (`pipeline.py`, `hopper.py`). `program.py` adds the kernels of a program
up.
"""
