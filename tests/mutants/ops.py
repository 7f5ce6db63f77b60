"""Planted bugs in further ops, and in layers."""

from tests.mutants.mutant import Mutant, planted

OPS, LAYERS = "jaxzoo/ops", "jaxzoo/layers"
TESTS = "tests/ops"

MUTANTS: list[Mutant] = [
    *planted(
        f"{OPS}/delta_kernels.py",
        f"{TESTS}/test_delta_kernels.py",
        (
            "delta rule by kernels: keys of which only one user's gradient counts",
            "keys[:, :t], written",
            "jax.lax.stop_gradient(keys[:, :t]), written",
        ),
        (
            "delta rule by kernels: writes that read no state",
            "whole, initial_state=state)",
            "whole, initial_state=None)",
        ),
        (
            "delta rule by kernels: kernels on a mesh that cuts them",
            'return rule if mesh_objection("") is None else None',
            "return rule",
        ),
    ),
    *planted(
        f"{OPS}/delta_kernels.py",
        f"{TESTS}/test_general_delta_kernels.py",
        (
            "general delta rule by kernels: a removal that reads the document before",
            "u = jnp.where(starts[..., None, None], jnp.zeros_like(u), u)",
            "u = jnp.where(starts[..., None, None], u, u)",
        ),
    ),
    *planted(
        f"{OPS}/delta_rule.py",
        f"{TESTS}/test_delta_rule.py",
        (
            "delta rule: a token does not see itself",
            "masked(replaced, strict), masked(read, meet)",
            "masked(replaced, strict), masked(read, strict)",
        ),
        (
            "delta rule: decay missing in the carry",
            "after = system.kept[..., None] * state + ",
            "after = state + ",
        ),
        (
            "delta rule: segment leak in the scores",
            "begun[..., :, None] == begun[..., None, :]",
            "begun[..., :, None] >= begun[..., None, :]",
        ),
        (
            "delta rule: segment leak in the carry",
            "kept = jnp.where(begun[..., -1:] == 0, kept, 0.0)",
            "kept = jnp.where(begun[..., -1:] >= 0, kept, 0.0)",
        ),
        (
            "delta rule: removal reads the state after its decay",
            "jnp.where(of_state, earlier, 0.0)",
            "jnp.where(of_state, reads, 0.0)",
        ),
        (
            "delta rule: wrong sign of the matrix's gradient in the solve",
            'return -jnp.einsum("bhiv,bhjv->bhij"',
            'return jnp.einsum("bhiv,bhjv->bhij"',
        ),
    ),
    *planted(
        "pallas_kernels/xla_chunks.py",
        f"{TESTS}/test_delta_rule.py::test_many_chunks_at_once",
        (
            "delta rule at once: chunks of a group in reverse order",
            "_matmul(made[:, :, i, ..., v:] + diagonal[:, :, i, ..., v:], places[-1])",
            "_matmul(places[-1][..., v:], made[:, :, i] + diagonal[:, :, i])",
        ),
        (
            "delta rule at once: groups in reverse order",
            "_matmul(groups[:, reach:, ..., v:], groups[:, :-reach])",
            "_matmul(groups[:, :-reach, ..., v:], groups[:, reach:])",
        ),
        ("delta rule at once: the first state missing", "jnp.pad(state, ", "jnp.pad(0 * state, "),
        ("delta rule at once: gradient of transitions not transposed", ".swapaxes(-1, -2), d_before", ", d_before"),
    ),
    *planted(
        f"{OPS}/delta_rule.py",
        f"{TESTS}/test_delta_rule.py::test_short_sequences_and_steps",
        (
            "delta rule: step reads the state before its decay",
            "values - (k[..., None] * decayed).sum(2)",
            "values - (k[..., None] * state).sum(2)",
        ),
    ),
    *planted(
        f"{OPS}/delta_rule.py",
        f"{TESTS}/test_delta_rule.py::test_two_parts_of_a_sequence",
        (
            "delta rule: parts of a sequence in reverse order",
            'einsum("bhij,bhjk->bhik", then, first',
            'einsum("bhij,bhjk->bhik", first, then',
        ),
    ),
    *planted(
        "pallas_kernels/gated_linear_attention/decayed_scores.py",
        f"{TESTS}/test_delta_rule.py",
        (
            "decay of a key's own token applied between pieces",
            "np.tri(c, k=-1, dtype=np.float32).T",
            "np.tri(c, dtype=np.float32).T",
        ),
        (
            "decay of the earlier of two pieces missing where they are joined",
            "before[:, :, 1::2] + whole[:, :, 0::2]",
            "before[:, :, 1::2]",
        ),
        (
            "decay of the later of two pieces missing where they are joined",
            "after[:, :, 0::2] + whole[:, :, 1::2]",
            "after[:, :, 0::2]",
        ),
    ),
    *planted(
        "pallas_kernels/wkv4/xla.py",
        f"{TESTS}/test_wkv4.py",
        ("WKV-4: segment leak in what a token reads", "jnp.where(starts, EMPTY, before))", "before)"),
        ("WKV-4: missing normalizer of the token itself", "/ (past * state.den + own)", "/ (past * state.den)"),
        (
            "WKV-4: gradient of the sums one token late",
            "jnp.concatenate([kept[1:], none[None]])",
            "jnp.concatenate([kept[:-1], none[None]])",
        ),
        ("WKV-4: padding enters a state", "k = jnp.where(real, k, EMPTY)", "k = jnp.where(real, k, 0.0)"),
    ),
    *planted(
        f"{OPS}/wkv4.py",
        f"{TESTS}/test_wkv4.py::test_short_sequences_and_steps",
        (
            "WKV-4: decay missing in step",
            "jnp.exp(state.max - w[None] - largest), jnp.exp(k - largest)",
            "jnp.exp(state.max - largest), jnp.exp(k - largest)",
        ),
    ),
    *planted(
        f"{OPS}/landmark_attention.py",
        f"{TESTS}/test_landmark_attention.py",
        ("the own block is retrieved", "(number < stop[..., None])", "(number <= stop[..., None])"),
        (
            "retrieval without a gradient",
            "log_p = log_p - lax.stop_gradient(log_p)",
            "log_p = lax.stop_gradient(log_p) * 0",
        ),
        (
            "choice by the rotated queries",
            "content_q, content_k = (q, k) if contents is None else contents",
            "content_q, content_k = q, k",
        ),
    ),
    *planted(
        f"{OPS}/landmark_attention.py",
        "tests/mixers/test_contract.py::test_packed_documents_equal_the_documents_alone[LandmarkCAT-tiny]",
        (
            "segment leak in the retrieved blocks",
            "(start[..., None] <= number) & (number",
            "(start[..., None] <= number + n) & (number",
        ),
    ),
    *planted(
        f"{OPS}/landmarks.py",
        f"{TESTS}/test_landmark_attention.py",
        ("taps of a landmark turned around", "taps[::-1], precision", "taps, precision"),
    ),
    *planted(
        f"{OPS}/landmarks.py",
        f"{TESTS}/test_landmark_attention.py::test_landmarks_of_blocks_without_keys_are_0",
        (
            "landmarks of blocks that have not begun",
            "reached = touched * size < (position + t)[:, None]",
            "reached = touched * size <= (position + t)[:, None]",
        ),
    ),
    *planted(
        f"{OPS}/block_sparse_attention.py",
        f"{TESTS}/test_block_sparse_attention.py",
        (
            "block-sparse: a token does not see itself",
            "visible = position <= query[..., None]",
            "visible = position < query[..., None]",
        ),
        (
            "block-sparse step: a slot after the position",
            "(slot <= position[:, None, None])",
            "(slot <= position[:, None, None] + 1)",
        ),
        (
            "block-sparse: no block is taken for block 0",
            "position = jnp.where(seen[..., None] >= 0, position, s)",
            "position = jnp.where(seen[..., None] >= -1, position, s)",
        ),
    ),
    *planted(
        f"{OPS}/input_dependent_filters.py",
        f"{TESTS}/test_input_dependent_filters.py",
        (
            "power of the real part alone",
            "power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)",
            "power = jnp.square(spectrum.real)",
        ),
        ("a match counted at distance 0", "jnp.where(lag > 0, same", "jnp.where(lag >= 0, same"),
        (
            "distance 0 among the strongest",
            "jax.lax.top_k(r[:, 1:], min(count, max(t - 1, 0)))[1] + 1",
            "jax.lax.top_k(r[:, 1:], min(count, max(t - 1, 0)))[1]",
        ),
    ),
    *planted(
        f"{OPS}/outer_product_conv.py",
        f"{TESTS}/test_outer_product_conv.py",
        ("outer products: filter of a step in reverse", "weights * taps[None, ::-1]", "weights * taps[None]"),
        ("outer products: segment leak", "past, segment_ids=segment_ids)", "past, segment_ids=None)"),
        (
            "outer products: history forgotten",
            "if past_k_c is not None and past_values is not None:",
            "if past_k_c is None and past_values is not None:",
        ),
    ),
    *planted(
        f"{OPS}/segments.py",
        f"{TESTS}/test_segments.py",
        (
            "a token of another document seen before",
            "jnp.zeros_like(tokens) if segment_ids is None else segment_ids",
            "jnp.zeros_like(tokens)",
        ),
    ),
    *planted(
        f"{LAYERS}/rotary.py",
        "tests/layers/test_rotary.py",
        (
            "rotation the other way round",
            "first * cos - second * sin, second * cos + first * sin",
            "first * cos + second * sin, second * cos - first * sin",
        ),
        (
            "angle by the float32 product of position and frequency",
            "np.round(turns * TURN)",
            "0 * np.round(turns * TURN)",
        ),
    ),
    *planted(
        f"{LAYERS}/alibi.py",
        "tests/layers/test_alibi.py",
        ("ALiBi: slopes of the power of two alone", "between[: n_heads - m]", "between[::-1][: n_heads - m]"),
    ),
    *planted(
        f"{LAYERS}/xpos.py",
        "tests/layers/test_xpos.py",
        ("xPos: keys fade as queries do", "(-1 if keys else 1)", "1"),
    ),
    *planted(
        f"{LAYERS}/s4d.py",
        "tests/layers/test_s4d.py",
        (
            "S4D: initial state one power too late",
            "weighted = (system.a * system.c)[None] * before",
            "weighted = system.c[None] * before",
        ),
        (
            "S4D: state not decayed over a prefill",
            "return y, _power(system.a, t)[None] * before + ",
            "return y, before + ",
        ),
        ("S4D: one half of the conjugate pairs", "y = 2 * (system.c[None] * x)", "y = (system.c[None] * x)"),
    ),
    *planted(
        f"{LAYERS}/shift_ssm.py",
        "tests/layers/test_s4d.py",
        (
            "shift SSM: register one token late",
            "_correlate(register, c[None])[:, 1 : t + 1]",
            "_correlate(register, c[None])[:, :t]",
        ),
    ),
    *planted(
        f"{LAYERS}/mlp.py",
        "tests/layers/test_mlp.py",
        (
            "MLP: the gate's activation on the other branch",
            "GATES[self.kind](self.gate_proj(x)) * hidden",
            "self.gate_proj(x) * GATES[self.kind](hidden)",
        ),
    ),
    *planted(
        f"{LAYERS}/hyena_filter.py",
        "tests/layers/test_hyena_filter.py",
        (
            "Hyena filter: window of the stretch instead of the whole filter",
            "decay_window(config, self.n_taps, self.channels)[:count]",
            "decay_window(config, count, self.channels)",
        ),
    ),
    *planted(
        f"{LAYERS}/head_norm.py",
        "tests/mixers/test_gated_delta_net.py",
        ("gated norm: gate without its activation", "jax.nn.silu(gate) if self.activation", "gate if self.activation"),
    ),
]
