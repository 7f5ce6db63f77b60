"""Short pieces of real dumps (jax 0.12, ptxas 13), cut and renumbered: what the tests of the Hopper model read."""

HEADER = """\
//--------------------- .text.taylor_mosaic_gpu_kernel --------------------------
\t.section\t.text.taylor_mosaic_gpu_kernel,"ax",@progbits
        .global         taylor_mosaic_gpu_kernel
.text.taylor_mosaic_gpu_kernel:
"""

LOOP = (
    HEADER
    + """\
   -:-:-:Y:01        /*0000*/                   LDC R1, c[0x0][0x28]
   -:-:0:Y:01        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P5, [UR4+0x12800], R3
   0:-:-:Y:06        /*0020*/              @!P5 BRA `(.L_x_4)
.L_x_8:
   -:0:-:Y:01        /*0030*/                   STSM.16.M88.4 [R8+0x10800], R12
   -:-:-:Y:01        /*0040*/                   MEMBAR.ALL.CTA
   -:-:-:Y:01        /*0050*/                   FENCE.VIEW.ASYNC.S
.L_x_7:
   -:1:-:Y:01        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x1, 0x80
   -:-:-:Y:01        /*0070*/                   WARPGROUP.ARRIVE
   -:-:-:Y:01        /*0080*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4].tnspB, R24
   -:-:-:Y:01        /*0090*/                   HGMMA.64x16x16.F32.BF16 R56, gdesc[UR8], RZ, !UPT, gsb0
   -:-:-:Y:02        /*00a0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0
   -:-:-:Y:05        /*00b0*/               @P1 BRA P2, `(.L_x_5)
   -:0:-:Y:02        /*00c0*/                   SYNCS.ARRIVE.TRANS64 RZ, [UR17], R15
.L_x_5:
   -:-:-:-:05        /*00d0*/               @P1 BRA `(.L_x_7)
   -:-:-:Y:05        /*00e0*/                   EXIT
.L_x_4:
   -:-:1:Y:02        /*00f0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P5, [UR4+0x12800], R3
   1:-:-:Y:05        /*0100*/              @!P5 BRA `(.L_x_4)
   -:-:-:Y:05        /*0110*/                   BRA `(.L_x_8)
.L_x_10:
   -:-:-:-:00        /*0120*/                   BRA `(.L_x_10)
"""
)
"""A loop .L_x_7, a barrier's retry .L_x_4 after the exit that jumps back to .L_x_8, and the padding after the end."""

MODULE = """\
module @kernel attributes {mosaic_gpu.arch_major = 9 : i32, stable_mosaic_gpu.version = 9 : i64} {
  "stable_mosaic_gpu.func.func"() ({
  }) {function_type = (!llvm.ptr) -> (), sym_name = "mosaic_gpu_init_tma_desc"} : () -> ()
  "stable_mosaic_gpu.func.func"() ({
  ^bb0(%arg0: !llvm.ptr, %arg1: !llvm.ptr):
    %0 = "stable_mosaic_gpu.builtin.unrealized_conversion_cast"(%arg0) : (!llvm.ptr) -> !gpu.async.token
    %1 = "stable_mosaic_gpu.arith.constant"() {value = 30 : index} : () -> index
    %2 = "stable_mosaic_gpu.arith.constant"() {value = 2 : index} : () -> index
    %3 = "stable_mosaic_gpu.arith.constant"() {value = 1 : index} : () -> index
    %4 = "stable_mosaic_gpu.arith.constant"() {value = 256 : index} : () -> index
    %5 = "stable_mosaic_gpu.arith.constant"() {value = 75808 : i32} : () -> i32
    %6 = "stable_mosaic_gpu.gpu.launch"(%0, %1, %2, %3, %4, %3, %3, %5) ({
    ^bb0(%arg2: index, %arg3: index):
      %10 = "stable_mosaic_gpu.gpu.block_id"() {dimension = #gpu.dim<x>} : () -> index
      %11 = "stable_mosaic_gpu.gpu.thread_id"() {dimension = #gpu.dim<x>} : () -> index
      %12 = "stable_mosaic_gpu.arith.constant"() {value = 7 : index} : () -> index
      %13 = "stable_mosaic_gpu.arith.shrui"(%11, %12) : (index, index) -> index
      %14 = "stable_mosaic_gpu.arith.constant"() {value = 0 : index} : () -> index
      "stable_mosaic_gpu.scf.index_switch"(%13) ({
        %20 = "stable_mosaic_gpu.arith.addi"(%10, %2) : (index, index) -> index
        "stable_mosaic_gpu.scf.for"(%14, %20, %3) ({
        ^bb0(%arg4: index):
          "stable_mosaic_gpu.llvm.inline_asm"(%5) {asm_string = "wgmma.mma_async.m64n64k16"} : (i32) -> ()
          "stable_mosaic_gpu.scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "stable_mosaic_gpu.scf.yield"() : () -> ()
      }, {
        %20 = "stable_mosaic_gpu.arith.constant"() {value = 4 : index} : () -> index
        "stable_mosaic_gpu.scf.for"(%14, %20, %3) ({
        ^bb0(%arg5: index):
          "stable_mosaic_gpu.llvm.inline_asm"(%5) {asm_string = "wgmma.mma_async.m64n16k16"} : (i32) -> ()
          %30 = "stable_mosaic_gpu.arith.cmpi"(%arg5, %3) {predicate = 4 : i64} : (index, index) -> i1
          "stable_mosaic_gpu.scf.if"(%30) ({
            "stable_mosaic_gpu.scf.for"(%14, %arg5, %3) ({
            ^bb0(%arg6: index):
              "stable_mosaic_gpu.scf.yield"() : () -> ()
            }) : (index, index, index) -> ()
          }, {
          }) : (i1) -> ()
          "stable_mosaic_gpu.scf.yield"() : () -> ()
        }) : (index, index, index) -> ()
        "stable_mosaic_gpu.scf.yield"() : () -> ()
      }) {cases = array<i64: 1>} : (index) -> ()
      "stable_mosaic_gpu.gpu.terminator"() : () -> ()
    }) {workgroup_attributions = 0 : i64} : (!gpu.async.token, index) -> !gpu.async.token
    "stable_mosaic_gpu.func.return"() : () -> ()
  }) {sym_name = "main"} : () -> ()
}
"""
"""30 x 2 blocks of two warpgroups: number 0 runs a loop of block + 2 turns; number 1 one of four, with a loop of i
turns in it where i > 1. Both name different values %20."""

TENSOR_MAP = """\
module @kernel {
  "stable_mosaic_gpu.func.func"() ({
  ^bb0(%arg0: !llvm.ptr):
    %1 = "stable_mosaic_gpu.arith.constant"() {value = 1 : index} : () -> index
    %2 = "stable_mosaic_gpu.memref.expand_shape"(%arg0) : (memref<4x8200x16xbf16>) -> memref<4x8xbf16>
    %3:10 = "stable_mosaic_gpu.memref.extract_strided_metadata"(%2) : (memref<4x1025x8x16xbf16, strided<[S]>>) -> index
    %10 = "stable_mosaic_gpu.memref.alloca"() : () -> memref<4xi64>
    %11 = "stable_mosaic_gpu.arith.constant"() {value = 0 : index} : () -> index
    %12 = "stable_mosaic_gpu.arith.constant"() {value = 2 : index} : () -> index
    %13 = "stable_mosaic_gpu.arith.constant"() {value = 3 : index} : () -> index
    %14 = "stable_mosaic_gpu.arith.constant"() {value = 8 : i64} : () -> i64
    %15 = "stable_mosaic_gpu.arith.constant"() {value = 16 : i64} : () -> i64
    "stable_mosaic_gpu.memref.store"(%1, %10, %11) : (i64, memref<4xi64>, index) -> ()
    "stable_mosaic_gpu.memref.store"(%14, %10, %1) : (i64, memref<4xi64>, index) -> ()
    "stable_mosaic_gpu.memref.store"(%14, %10, %12) : (i64, memref<4xi64>, index) -> ()
    "stable_mosaic_gpu.memref.store"(%15, %10, %13) : (i64, memref<4xi64>, index) -> ()
    %20 = "stable_mosaic_gpu.builtin.unrealized_conversion_cast"(%10) : (memref<4xi64>) -> !llvm.ptr
    %21 = "stable_mosaic_gpu.llvm.extractvalue"(%20) {position = 1 : i64} : (!llvm.ptr) -> !llvm.ptr
    %22 = "stable_mosaic_gpu.arith.constant"() {value = 32 : i64} : () -> i64
    "stable_mosaic_gpu.func.call"(%arg0, %arg0, %1, %1, %21, %21, %22, %21) {callee = @mosaic_gpu_init_tma_desc}
    "stable_mosaic_gpu.func.return"() : () -> ()
  }) {sym_name = "main"} : () -> ()
}
""".replace("[S]", "[131200, 128, 16, 1]")

FENCED = """\
  "stable_mosaic_gpu.func.func"() ({
  ^bb0(%arg0: index):
    %10 = "stable_mosaic_gpu.gpu.dynamic_shared_memory"() : () -> memref<?xi8>
    %11 = "stable_mosaic_gpu.memref.view"(%10, %arg0) : (memref<?xi8>, index) -> memref<64x64xbf16, #workgroup>
    %12 = "stable_mosaic_gpu.memref.view"(%10, %arg0) : (memref<?xi8>, index) -> memref<64x16xbf16, #workgroup>
    %13 = "stable_mosaic_gpu.llvm.load"(%11) : (!llvm.ptr) -> !llvm.ptr
    "stable_mosaic_gpu.scf.for"(%arg0, %arg0, %arg0) ({
    ^bb0(%arg1: index):
BODY
    }) : (index, index, index) -> ()
  }) {sym_name = "main"} : () -> ()
"""
"""Two buffers of shared memory, and a loop over `FENCED_LINES` in some order."""

FENCED_LINES = (
    """\
      %20 = "stable_mosaic_gpu.llvm.getelementptr"(%11, %arg1) : (!llvm.ptr, index) -> !llvm.ptr
      "stable_mosaic_gpu.nvvm.stmatrix"(%20, %arg1) {layout = #nvvm.mma_layout<row>} : (!llvm.ptr, i32) -> ()
""",
    """\
      "stable_mosaic_gpu.nvvm.fence.proxy"() {kind = #nvvm.proxy_kind<async.shared>} : () -> ()
""",
    """\
      %30 = "stable_mosaic_gpu.llvm.ptrtoint"(%11) : (!llvm.ptr) -> i64
      %31 = "stable_mosaic_gpu.llvm.lshr"(%30, %arg1) : (i64, i64) -> i64
      "stable_mosaic_gpu.llvm.inline_asm"(%arg1, %31) {asm_string = "wgmma.mma_async.m64n64k16"} : (i64, i64) -> ()
""",
)
"""A write to the first buffer, a fence, a matmul that reads it."""
