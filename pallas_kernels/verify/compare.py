"""`python -m pallas_kernels.verify --compare`: compares lowered programs with the certificates; needs no device.

If all cases of an op lower to their verified programs, its certificates are renewed: they hold for the current code.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax

from pallas_kernels import certificates
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
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_on_the_host) as pool:
        found = dict(zip(names, pool.map(lowered_programs, names), strict=True))
    return {name: _line(name) for name in names if found[name] != expected[name]}


def verified() -> dict[str, list[str]]:
    """Programs of the right cases in all certificates of this version of JAX, by name."""
    cases = [case for report in certificates.reports() for case in report["cases"] if case["status"] == "ok"]
    return {case["case"]: sorted(case["programs"]) for case in cases if case.get("programs")}


def _line(name: str) -> str:
    op, *_ = name.split()
    return (
        f"{name}: its kernels differ from the verified ones; run python -m pallas_kernels.verify --ops {op} on a "
        "device and keep its report in pallas_kernels/certificates"
    )


def renew(ops: set[str]) -> None:
    """Renews certificates of this version of JAX for the current code of the kernels of `ops`."""
    for file in sorted(certificates.FOLDER.glob("*.json")):
        report: dict[str, Any] = json.loads(file.read_text())
        if certificates.minor_version(report["jax"]) == certificates.minor_version(jax.__version__):
            report["kernels"] |= {op: kernel_hash(op) for op in ops & set(report["kernels"])}
            write(report, file)


def write(report: dict[str, Any], file: Path) -> None:
    """Writes a certificate in the format of `verify`."""
    file.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    """Compares all verified cases, renews the certificates of ops without differences, and returns the exit status."""
    names = list(verified())
    if not names:
        print(f"verify: no certificate is for JAX {jax.__version__}", file=sys.stderr)
        return 2
    wrong = differences(names)
    for line in wrong.values():
        print(line, file=sys.stderr)
    changed = {name.split()[0] for name in wrong}
    same = {name.split()[0] for name in names} - changed
    renew(same)
    print(f"{len(names) - len(wrong)} of {len(names)} cases lower to their verified programs; renewed: {sorted(same)}")
    return 1 if wrong else 0


def _on_the_host() -> None:
    jax.config.update("jax_platforms", "cpu")
