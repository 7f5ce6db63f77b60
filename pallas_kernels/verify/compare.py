"""`python -m pallas_kernels.verify --compare`: compares lowered programs with the certificates; needs no device.

If all cases of an op lower to their verified programs, its certificates are renewed: they hold for the current code.
"""

import json
import sys
from typing import Any

import jax

from pallas_kernels import certificates, pages
from pallas_kernels.child import host_pool
from pallas_kernels.kernel_sources import kernel_hash
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.cases import CASES
from pallas_kernels.verify.kernel_case import case_programs


def lowered_programs(name: str) -> list[str]:
    """Hashes of the programs of a case, lowered for an absent GPU."""
    case: Any = next(case for case in list[Any](CASES["gpu"]) if case.name == name)
    run, given = case.program(case.inputs(0), Variant())
    return case_programs(jax.jit(run).trace(*given).lower(lowering_platforms=("cuda",)))


def differences(names: list[str], processes: int = 2) -> dict[str, str]:
    """Cases whose programs differ from their certificates: name -> one line. `names`: keys of `verified`."""
    expected = verified()
    with host_pool(processes) as pool:
        found = dict(zip(names, pool.map(lowered_programs, names), strict=True))
    return {
        name: f"{name}: its kernels differ from the verified ones; run python -m pallas_kernels.verify --ops "
        f"{name.split()[0]} on a device and keep its report in pallas_kernels/certificates"
        for name in names
        if found[name] != expected[name]
    }


def verified() -> dict[str, list[str]]:
    """Programs of the right cases in all certificates of this version of JAX, by name."""
    cases = [case for report in certificates.reports() for case in report["cases"] if case["status"] == "ok"]
    return {case["case"]: sorted(case["programs"]) for case in cases if case.get("programs")}


def renew(ops: set[str]) -> None:
    """Renews certificates of this version of JAX for the current code of the kernels of `ops`."""
    for file in sorted(certificates.FOLDER.glob("*.json")):
        report: dict[str, Any] = json.loads(file.read_text())
        if certificates.minor_version(report["jax"]) == certificates.minor_version(jax.__version__):
            report["kernels"] |= {op: kernel_hash(op) for op in ops & set(report["kernels"])}
            pages.write_json(file, report)


def main() -> int:
    """Compares all verified cases, renews the certificates of ops without differences, and returns the exit status."""
    names = list(verified())
    if not names:
        print(f"verify: no certificate is for JAX {jax.__version__}", file=sys.stderr)
        return 2
    wrong = differences(names)
    for line in wrong.values():
        print(line, file=sys.stderr)
    same = {name.split()[0] for name in names} - {name.split()[0] for name in wrong}
    renew(same)
    print(f"{len(names) - len(wrong)} of {len(names)} cases lower to their verified programs; renewed: {sorted(same)}")
    return 1 if wrong else 0
