"""Each headline workload as a group of its own, for `test_compile_check.py`: two workers share the compilations."""

from pallas_kernels.registry import OPS, load

GROUPS = {
    f"{op} {workload.name} {workload.kind}": (workload,)
    for op in OPS
    for workload in load(op, "workloads").GROUPS["headline"]
}
