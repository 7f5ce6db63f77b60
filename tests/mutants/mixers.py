"""Planted bugs in mixers, ops and layers."""

from tests.mutants.mutant import Mutant

LINEAR = "pallas_kernels/gated_linear_attention/xla.py"
LINEAR_TESTS = tuple(
    f"tests/ops/test_linear_attention.py::test_{name}" for name in ("short_sequences_and_steps", "values_and_gradients")
)
CONTRACT = "tests/mixers/test_contract.py"
SEQUENCE = "tests/mixers/test_sequence_parallel.py::test_parts_of_a_sequence_give_the_numbers_of_the_whole"


def contract(test: str, case: str) -> str:
    """Id of one test of the contract."""
    return f"{CONTRACT}::{test}[{case}-tiny]"


PREFILL, PACKED = "test_prefill_from_any_state_equals_steps", "test_packed_documents_equal_the_documents_alone"

MUTANTS: list[Mutant] = [
    Mutant(
        name="mask off by one",
        path=LINEAR,
        old="np.tri(c, dtype=bool)",
        new="np.tri(c, k=-1, dtype=bool)",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="chunk carry dropped",
        path=LINEAR,
        old='s = kept[..., None] * state.s + matmul("bhjk,bhjv->bhkv", k, v)',
        new='s = matmul("bhjk,bhjv->bhkv", k, v)',
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="decay applied twice to what a chunk reads",
        path=LINEAR,
        old="(jnp.exp(x) for x in sums_to_borders",
        new="(jnp.exp(2 * x) for x in sums_to_borders",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="decay missing in the carry",
        path=LINEAR,
        old="s = kept[..., None] * state.s + matmul(",
        new="s = state.s + matmul(",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="decay missing in step",
        path="jaxzoo/ops/linear_attention.py",
        old="s = kept[..., None] * state.s + k[..., :, None] * values",
        new="s = state.s + k[..., :, None] * values",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="normalizer of the chunk alone",
        path=LINEAR,
        old='den = scores.sum(-1) + matmul("bhik,bhk->bhi", q, state.z)',
        new="den = scores.sum(-1)",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="padding divided by nothing",
        path=LINEAR,
        old="return num / jnp.where(total == 0, 1.0, total)[..., None]",
        new="return num / total[..., None]",
        tests=("tests/ops/test_linear_attention.py::test_padding_divides_nothing_by_nothing",),
    ),
    Mutant(
        name="squares of queries with queries",
        path=LINEAR,
        old="rows, columns = (x.astype(jnp.float32).swapaxes(1, 2) for x in squares)",
        new="rows, columns = (squares[0].astype(jnp.float32).swapaxes(1, 2) for x in squares)",
        tests=("tests/ops/test_linear_attention.py::test_weights_that_are_squares",),
    ),
    Mutant(
        name="value residual by the share of the own values",
        path="jaxzoo/mixers/linear/rwkv7.py",
        old="values = values + (context.first_values - values) * share",
        new="values = context.first_values + (values - context.first_values) * share",
        tests=("tests/mixers/test_rwkv7.py::test_equation_of_a_later_layer",),
    ),
    Mutant(
        name="permutations composed in the other order",
        path="jaxzoo/tasks/permutations.py",
        old="products[later, earlier]",
        new="products[earlier, later]",
        tests=("tests/tasks/test_permutations.py::test_products_by_matrices",),
    ),
    Mutant(
        name="chunks at once: a state is not decayed over two chunks",
        path="pallas_kernels/xla_chunks.py",
        old="return f * g, jax.tree.map",
        new="return g, jax.tree.map",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="scores at once: the decay of one token more",
        path="pallas_kernels/gated_linear_attention/decayed_scores.py",
        old="(j < m) & (m <= i)",
        new="(j <= m) & (m <= i)",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="scores at once: the decay of one piece more",
        path="pallas_kernels/gated_linear_attention/decayed_scores.py",
        old="(j < m) & (m < i)",
        new="(j < m) & (m <= i)",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="gradient of the state dropped between chunks",
        path=LINEAR,
        old="return state, y.swapaxes(1, 2).astype(v.dtype)",
        new="return jax.lax.stop_gradient(state), y.swapaxes(1, 2).astype(v.dtype)",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="segment leak",
        path=LINEAR,
        old="RESET = -8192.0",
        new="RESET = -1.0",
        tests=LINEAR_TESTS,
    ),
    Mutant(
        name="padding enters a state",
        path="jaxzoo/ops/diagonal_scan.py",
        old="(np.arange(n * size) < t)",
        new="(np.arange(n * size) <= t)",
        tests=("tests/ops/test_diagonal_scan.py::test_one_a_for_all_tokens",),
    ),
    Mutant(
        name="states before groups of tokens: a group keeps all of the state",
        path="jaxzoo/ops/diagonal_scan.py",
        old="states.append(a_i * states[-1] + b_i)",
        new="states.append(states[-1] + b_i)",
        tests=("tests/ops/test_diagonal_scan.py::test_values_and_gradients",),
    ),
    Mutant(
        name="bonus of the token written into the state",
        path="jaxzoo/ops/bonus_linear_attention.py",
        old="reader, k, v, log_decay=log_decay",
        new="reader, bonus[None, None] * k, v, log_decay=log_decay",
        tests=("tests/ops/test_bonus_linear_attention.py",),
    ),
    Mutant(
        name="bonus: a document's first query reads the document before",
        path="jaxzoo/ops/bonus_linear_attention.py",
        old="reader = jnp.where(ends[..., None, None], jnp.zeros_like(reader), reader)",
        new="pass",
        tests=("tests/ops/test_bonus_linear_attention.py",),
    ),
    Mutant(
        name="bonus: the first query reads nothing",
        path="jaxzoo/ops/bonus_linear_attention.py",
        old="y = jnp.concatenate([first, y[:, :-1]",
        new="y = jnp.concatenate([0 * first, y[:, :-1]",
        tests=("tests/ops/test_bonus_linear_attention.py",),
    ),
    Mutant(
        name="first decay of a part missing",
        path="jaxzoo/ops/bonus_linear_attention.py",
        old="return jnp.exp(tokens[3].sum(1))",
        new="return jnp.exp(tokens[3][:, 1:].sum(1))",
        tests=(f"{SEQUENCE}[RWKV5TimeMix-tiny-sequence-True]",),
    ),
    Mutant(
        name="halo keys that do not exist are visible",
        path="jaxzoo/ops/local_attention.py",
        old="(0, *limits), **options)",
        new="(1, *limits), **options)",
        tests=(f"{SEQUENCE}[BlockedWindowAttention-n_heads=2,block_size=4-sequence-True]",),
    ),
    Mutant(
        name="window one key too wide",
        path="jaxzoo/ops/local_attention.py",
        old="(distance >= 0) & (distance <= limit)",
        new="(distance >= 0) & (distance <= limit + 1)",
        tests=("tests/ops/test_local_attention.py",),
    ),
    Mutant(
        name="segment leak in the window",
        path="jaxzoo/mixers/attention/blocked_window_attention.py",
        old="self._attend(q, k, v, blocks, context.segment_ids)",
        new="self._attend(q, k, v, blocks, 0 * context.segment_ids)",
        tests=(contract(PACKED, "BlockedWindowAttention"),),
    ),
    Mutant(
        name="segment leak in the filter",
        path="jaxzoo/layers/packed_conv.py",
        old="same = (owner[:, then] == documents)[..., None]",
        new="same = (owner[:, then] >= 0)[..., None]",
        tests=("tests/layers/test_packed_conv.py::test_documents_do_not_reach_one_another",),
    ),
    Mutant(
        name="segment leak in the token shift",
        path="jaxzoo/layers/token_shift.py",
        old="starts = segment_ids[:, 1:] != segment_ids[:, :-1]",
        new="starts = segment_ids[:, 1:] > segment_ids[:, :-1]",
        tests=(contract(PACKED, "RWKV4TimeMix"),),
    ),
    Mutant(
        name="filter shifted by one after a history",
        path="jaxzoo/layers/causal_conv.py",
        old="skip = history.shape[1]",
        new="skip = history.shape[1] - 1",
        tests=("tests/layers/test_causal_conv.py::test_values",),
    ),
    Mutant(
        name="acausal filter: the transform wraps around",
        path="jaxzoo/layers/causal_conv.py",
        old="size = fast_size(t + taps.shape[0] - 1)",
        new="size = fast_size(t)",
        tests=("tests/layers/test_causal_conv.py::test_values",),
    ),
    Mutant(
        name="ring slot off by one",
        path="jaxzoo/mixers/attention/scatter_brain.py",
        old="oldest = (position % w)[:, :, None, None]",
        new="oldest = ((position + 1) % w)[:, :, None, None]",
        tests=(contract(PREFILL, "ScatterBrain"),),
    ),
    Mutant(
        name="state in the dtype of activations",
        path="jaxzoo/mixers/linear/ret_net.py",
        old="RetNetState(jnp.zeros(shape, jnp.float32)",
        new="RetNetState(jnp.zeros(shape, dtype)",
        tests=(contract("test_prefill_from_any_state_equals_steps", "RetNet"),),
    ),
    Mutant(
        name="scale of the model width",
        path="jaxzoo/mixers/linear/ret_net.py",
        old="q = q * config.head_width**-0.5 if",
        new="q = q * config.width**-0.5 if",
        tests=("tests/mixers/test_ret_net.py::test_equation",),
    ),
    Mutant(
        name="position that a prefill does not advance",
        path="jaxzoo/mixers/linear/ret_net.py",
        old="RetNetState(after.s, position + tokens.shape[1])",
        new="RetNetState(after.s, position)",
        tests=(contract(PREFILL, "RetNet"),),
    ),
    Mutant(
        name="a key of the future in the cache",
        path="jaxzoo/mixers/attention/softmax_attention.py",
        old="return slots_of(state)[:, None, :] <= positions[:, :, None]",
        new="return slots_of(state)[:, None, :] <= positions[:, :, None] + 1",
        tests=(contract("test_call_and_gradients_equal_those_of_two_prefills", "Attention"),),
    ),
    Mutant(
        name="noise squared",
        path="jaxzoo/mixers/attention/selective_attention.py",
        old="np.float32(config.noise) *",
        new="np.float32(config.noise**2) *",
        tests=("tests/mixers/test_selective_attention.py::test_training_explores",),
    ),
    Mutant(
        name="history of the convolved inputs",
        path="jaxzoo/layers/causal_conv.py",
        old="return y, push_history(before, x)",
        new="return y, push_history(before, y)",
        tests=(contract(PREFILL, "Mamba"),),
    ),
    Mutant(
        name="a document that ends in a part is carried on",
        path="jaxzoo/parallel/sequence_parallel.py",
        old="continues & (ids[:, 0] == ids[:, -1])",
        new="continues",
        tests=(f"{SEQUENCE}[RWKV5TimeMix-tiny-sequence-True]",),
    ),
]
