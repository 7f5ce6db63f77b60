"""Timed calls: the headline shapes by each kernel and by XLA."""

import dataclasses
from collections.abc import Callable

from pallas_kernels.benchmark import programs, timing
from pallas_kernels.registry import OPS, load, native
from pallas_kernels.workload import Workload


@dataclasses.dataclass(frozen=True)
class TimedCall:
    """One workload with one implementation."""

    op: str
    group: str
    index: int
    implementation: str
    seconds: float = 0.3
    """Duration of the measurement."""

    @property
    def workload(self) -> Workload:
        return load(self.op, "workloads").GROUPS[self.group][self.index]

    @property
    def kind(self) -> str:
        return self.workload.kind

    @property
    def name(self) -> str:
        return f"{self.op} {self.kind} {self.workload.name} {self.implementation}"

    def compiled(self) -> Callable[[], dict[str, float]]:
        """Function that measures one call; `ms` is the median."""
        import jax

        workload = self.workload
        n_sets, calls = programs.plan(workload, jax.default_backend())
        inputs = jax.eval_shape(lambda: workload.inputs(0))
        compiled = programs.lower(workload.build(self.implementation), inputs, calls).compile()

        def run():
            sets = [workload.inputs(1000 * i) for i in range(n_sets)]
            program = programs.JaxProgram(compiled, sets, calls)
            program.start()
            found = timing.measure(program.batch, calls=calls, seconds=self.seconds, repeats=20)
            return {"ms": 1e3 * found.median, "ms_p10": 1e3 * found.p10, "ms_p90": 1e3 * found.p90}

        return run


def headline(platform: str) -> list[TimedCall]:
    """All workloads of the groups headline and channel with all implementations of the platform."""
    return [
        TimedCall(op, group, index, implementation)
        for op in OPS
        for group in ("headline", "channel")
        for index in range(len(load(op, "workloads").GROUPS.get(group, ())))
        for implementation in (*native(op, platform), "xla")
    ]


TIMES = {
    "gpu": headline("gpu"),
    "tpu": headline("tpu"),
    "cpu": [TimedCall("taylor_attention", "cpu", 0, "xla", seconds=0.2)],
}
"""Calls by platform; on a CPU a single one."""
