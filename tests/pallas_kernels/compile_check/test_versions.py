"""Working instructions of a kernel under two versions of JAX."""

from pallas_kernels.compile_check.sass import Instruction, Kernel
from pallas_kernels.compile_check.table import differences, work

CODE = (
    "HGMMA.64x64x16.F32.BF16 R4, R8, gdesc[UR4]",
    "@P0 MUFU.EX2 R1, R2",
    "IMAD.MOV.U32 R1, R2",
    "BRA `(.L_x_1)",
    "MUFU.RCP R1, R2",
    "UTMALDG.3D [UR8], [UR4]",
    "HFMA2 R5, -RZ, RZ, 0, 0",
    "HFMA2.BF16 R5, R1, R2, R3",
)


def entry(**changed):
    found = {"op": "wkv4", "kind": "forward", "shape": "s", "target": "h100", "work": [["f", 100, {"MUFU": 2}]]}
    return found | changed


def test_work_is_what_computes_and_moves():
    """Kills a count of addresses and branches, which compilers choose, and one that misses a predicated instruction."""
    assert work(Kernel("f", [Instruction(text) for text in CODE], {})) == {
        "HFMA2": 1,
        "HGMMA.64x64x16": 1,
        "MUFU": 2,
        "UTMALDG": 1,
    }


def test_differences_by_kernel():
    """Kills a difference that passes: an instruction more, registers, a kernel that is missing."""
    same = [entry()]
    assert differences(same, [entry(work=[["f", 105, {"MUFU": 2}]])]) == (1, [])
    assert differences(same, [entry(work=[["f", 106, {"MUFU": 2}]])])[1] == [
        "wkv4 forward s h100, f: 100 registers, not 106"
    ]
    assert differences(same, [entry(work=[["f", 100, {"MUFU": 3, "BAR": 1}]])])[1] == [
        "wkv4 forward s h100, f: BAR 0, not 1; MUFU 2, not 3"
    ]
    assert differences(same, [entry(work=[])])[1] == ["wkv4 forward s h100: other kernels"]
    assert differences(same, [entry(shape="other")]) == (0, [])
