"""`python -m pallas_kernels.verify --compare`: compares lowered programs with the certificates; needs no device.

If all cases of an op lower to their verified programs, its certificates are renewed: they hold for the current code.
"""

import contextlib
import json
import sys
from typing import Any

import jax

from pallas_kernels import certificates, pages, triton_packages
from pallas_kernels.child import host_pool
from pallas_kernels.dispatch import language_of, lowering_for
from pallas_kernels.kernel_sources import LANGUAGES, MOSAIC, TRITON, kernel_hash
from pallas_kernels.verify.case import Variant
from pallas_kernels.verify.cases import CASES
from pallas_kernels.verify.kernel_case import case_programs


def lowered_programs(name: str) -> list[str]:
    """Hashes of the programs of a case, lowered for an absent GPU. `name`: a key of `verified`."""
    name, _, gpu = name.partition(" on ")
    case: Any = next(case for case in list[Any](CASES["gpu"]) if case.name == name)
    run, given = case.program(case.inputs(0), Variant())
    with _absent(*gpu.split()):
        return case_programs(jax.jit(run).trace(*given).lower(lowering_platforms=("cuda",)))


def _absent(capability: str = "", cores: str = "") -> contextlib.AbstractContextManager[None]:
    if not capability:
        return contextlib.nullcontext()
    return lowering_for("cuda", capability=capability, multiprocessors=int(cores))


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
    """Programs of the right cases in all certificates of this version of JAX, by name.

    Names of Triton's end with compute capability and multiprocessors of the GPU; without jax-triton there are none.
    """
    reports = certificates.reports()
    if triton_packages.missing() is None:
        reports += certificates.reports(TRITON)
    return {
        case["case"] + _gpu(report): sorted(case["programs"])
        for report in reports
        for case in report["cases"]
        if case["status"] == "ok" and case.get("programs")
    }


def _gpu(report: dict[str, Any]) -> str:
    return f" on {report['architecture']} {report['cores']}" if report["language"] == TRITON else ""


def renew(ops: set[str], language: str = MOSAIC) -> None:
    """Renews certificates of this version of JAX for the current code of the kernels of `ops` in a language."""
    for file in sorted(certificates.FOLDER.glob("*.json")):
        report: dict[str, Any] = json.loads(file.read_text())
        current = certificates.minor_version(report["jax"]) == certificates.minor_version(jax.__version__)
        if current and report.get("language", MOSAIC) == language:
            report["kernels"] |= {op: kernel_hash(op, language) for op in ops & set(report["kernels"])}
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
    renewed = []
    for language in LANGUAGES:
        of = [{x.split()[0] for x in some if language_of(x.split()[1]) == language} for some in (names, wrong)]
        same = of[0] - of[1]
        renew(same, language)
        renewed += [f"{op} in {language.title()}" for op in sorted(same)]
    print(f"{len(names) - len(wrong)} of {len(names)} cases lower to their verified programs; renewed: {renewed}")
    return 1 if wrong else 0
