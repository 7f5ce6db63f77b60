"""Planted bugs in data, evaluation and generation."""

from tests.mutants.mutant import Mutant, planted

MUTANTS: list[Mutant] = [
    *planted(
        "jaxzoo/config/json_files.py",
        "tests/config/test_json_files.py",
        ("a field that occurs twice is read once", "if key in result:", "if False:"),
        ("depth is not checked", "        _check_depth(value)\n", ""),
    ),
    *planted(
        "jaxzoo/data/corpus/fasta.py",
        "tests/data/corpus/test_fasta.py",
        ("regions count from 0", "Interval(first - 1, last, split)", "Interval(first, last, split)"),
        ("a gap of a hundred N stays", 'rb"N{%d,}" % GAP_BASES', 'rb"N{%d,}" % (GAP_BASES + 1)'),
        ("a document is cut where a read ends", "len(last) % DOCUMENT_BASES", "0"),
        ("an interval behind the end is short", "last.end is not None and last.end > self._at", "False"),
    ),
    *planted(
        "jaxzoo/data/completions.py",
        "tests/data/test_completions.py",
        (
            "the loss misses the first token of a response",
            "targets[row, len(prompt) - 1 :",
            "targets[row, len(prompt) :",
        ),
        ("the end of a prompt is cut", "prompt[-max(1, length + 1 - len(pair.response)) :]", "prompt[: length]"),
        ("validation pairs are trained on", " if not is_held_out(repr(each), VALID_SHARE)]", "]"),
    ),
    *planted(
        "jaxzoo/data/corpus/lines.py",
        "tests/data/corpus/test_rows.py",
        ("rows of a batch are not counted", "number += batch.num_rows", "number += 1"),
        ("a row group is decoded as a whole", "iter_batches(ROWS_AT_ONCE,", "iter_batches(10**9,"),
    ),
    *planted(
        "jaxzoo/tasks/base.py",
        "tests/tasks/test_all_tasks.py",
        ("splits of tasks made on the host overlap", "% 2 == (split ==", "% 2 != 7 or (split =="),
    ),
    *planted(
        "jaxzoo/layers/last_token_decoder.py",
        "tests/layers/test_last_token_decoder.py",
        ("the decoder of an autoencoder sees every token", "residual[:, -1:] +", "residual +"),
    ),
    *planted(
        "jaxzoo/layers/pair_embedding.py",
        "tests/layers/test_pair_embedding.py",
        ("a key that is asked for comes with a value", "value[:, :, None] > 0", "value[:, :, None] >= 0"),
    ),
    *planted(
        "jaxzoo/tasks/continuous_mqar.py",
        "tests/tasks/test_continuous_mqar.py",
        ("answers of continuous MQAR in another order than its queries", "targets=values[last]", "targets=values"),
    ),
    *planted(
        "jaxzoo/data/statistics/ngram.py",
        "tests/data/statistics/test_markov.py",
        ("contexts are lost where chunks meet", "train[max(start - order, 0) :", "train[start :"),
        ("the lower order is left out", "own + seen * lower[at]", "own + seen / n_ids"),
    ),
    *planted(
        "jaxzoo/data/labelled_sequences.py",
        "tests/data/test_labelled_sequences.py",
        ("the answer is read one token early", "positions=lengths[:, None]", "positions=lengths[:, None] - 1"),
        ("the end-of-text is in the mean", "pooled=lengths", "pooled=lengths + 1"),
    ),
    *planted(
        "jaxzoo/data/corpus/labelled.py",
        "tests/data/test_labelled_sequences.py",
        ("classes of splits may differ", 'if odd := sorted(there ^ names["train"]):', "if odd := []:"),
    ),
    *planted(
        "jaxzoo/generation/sampling.py",
        "tests/generation/test_sampling.py",
        (
            "temperature ignored",
            "centred / jnp.maximum(knobs.temperature, jnp.finfo(jnp.float32).tiny)",
            "centred",
        ),
        ("top-k off by one: one token too many", "rank < knobs.top_k", "rank <= knobs.top_k"),
        (
            "top-p off by one: the token that reaches p is left out",
            "jnp.cumsum(probability, axis=-1) - probability",
            "jnp.cumsum(probability, axis=-1).at[:, 0].set(0.0)",
        ),
        (
            "top-p over the whole vocabulary instead of the top k",
            "jax.nn.softmax(jnp.where(stays, -negated, -jnp.inf), axis=-1)",
            "jax.nn.softmax(-negated, axis=-1)",
        ),
    ),
    *planted(
        "jaxzoo/generation/prompts.py",
        "tests/generation/test_prompts.py",
        (
            "the prompt's tail is padded on the left",
            "row[:n] = prompt[len(prompt) - n :]",
            "row[-n:] = prompt[len(prompt) - n :]",
        ),
    ),
    *planted(
        "jaxzoo/generation/decode.py",
        "tests/generation/test_generate.py",
        (
            "lengths ignored in prefill: padding enters the states of short rows",
            "jnp.where(takes_part.reshape(-1, *(1,) * (old.ndim - 1)), new, old)",
            "new",
        ),
        ("first token drawn one step late", "at >= rules.tail_length - 1", "at >= rules.tail_length"),
        ("stop token ignored", " | jnp.any(drawn[:, None] == rules.stop_tokens[None], axis=1)", ""),
        (
            "draws keyed by the step instead of the position",
            "jax.vmap(jax.random.fold_in)(rules.keys, state.position)",
            "jax.vmap(jax.random.fold_in)(rules.keys, at)",
        ),
    ),
    *planted(
        "jaxzoo/data/windows.py",
        "tests/data/test_text_data.py",
        (
            "label shift: the target is the token itself",
            "windows[:, :-1], windows[:, 1:]",
            "windows[:, :-1], windows[:, :-1]",
        ),
        (
            "packed documents: no new segment after end-of-text",
            "tokens == self.tokenizer.end_of_text, axis",
            "tokens == self.tokenizer.end_of_text + 1, axis",
        ),
        (
            "packed documents: the segment begins one token late",
            "np.cumsum(tokens == self.tokenizer.end_of_text,",
            "np.cumsum(np.roll(tokens, 1, axis=1) == self.tokenizer.end_of_text,",
        ),
        (
            "bits per byte: end-of-text counted as a byte",
            "tokenizer.count_bytes(self._scored[1])",
            "self._scored[1].size",
        ),
        (
            "data cursor off by one",
            'self._windows.set_state(state["windows"])',
            'self._windows.set_state({"next_index": state["windows"]["next_index"] + 1})',
        ),
    ),
    *planted(
        "jaxzoo/data/text_data.py",
        "tests/data/test_text_data.py",
        ("training on the validation text", '"train", corpus.train)', '"train", corpus.valid)'),
        ("last window never drawn", "- length, size=", "- length - 1, size="),
    ),
    *planted(
        "jaxzoo/data/corpus/files.py",
        "tests/data/corpus/test_files.py",
        (
            "train and validation overlap",
            "tuple(d for d in documents if d.name not in chosen)",
            "tuple(d for d in documents)",
        ),
    ),
    *planted(
        "jaxzoo/data/tokens/token_windows.py",
        "tests/data/test_token_data.py",
        ("windows of an epoch overlap by one token", "place * self._length)", "place * (self._length - 1))"),
        ("all later epochs begin at the same token", "default_rng((*seed, epoch))", "default_rng(seed)"),
    ),
    *planted(
        "jaxzoo/data/token_data.py",
        "tests/data/test_token_data.py",
        ("rows of a process are the first rows of the batch", "for row in rows)", "for row in range(len(rows)))"),
    ),
    *planted(
        "jaxzoo/evals/recall_slices.py",
        "tests/evals/test_recall_slices.py",
        (
            "repeats: the last target is taken for the one before",
            "repeat_distances(sequence, n, runs), places + 1, axis=1)",
            "repeat_distances(sequence, n, runs), places, axis=1)",
        ),
        (
            "repeats: context of the document before is seen",
            "np.zeros((b, t), np.int64) if segment_ids is None else segment_ids",
            "np.zeros((b, t), np.int64)",
        ),
        ("rare: fewer than, not at most", "(seen <= self.at_most)", "(seen < self.at_most)"),
    ),
    *planted(
        "jaxzoo/data/statistics/repeats.py",
        "tests/data/statistics/test_repeats.py",
        ("an n-gram repeats itself", "gaps = np.zeros(", "gaps = np.ones("),
    ),
    *planted(
        "jaxzoo/data/statistics/ngram.py",
        "tests/data/statistics/test_ngram.py",
        ("bits per byte: wrong base", "nats_per_token / math.log(2)", "nats_per_token / math.log(10)"),
    ),
    *planted(
        "jaxzoo/data/statistics/bigram_counts.py",
        "tests/data/statistics/test_bigram_counts.py",
        (
            "bigram counts: the pair across two shards is lost",
            "if index + 1 < len(shards)",
            "if index + 2 < len(shards)",
        ),
    ),
    *planted(
        "jaxzoo/data/tokens/tokenization.py",
        "tests/data/tokens/test_tokenization.py",
        (
            "documents are lost where batches meet",
            "while n_bytes < BATCH_BYTES and (document := next(documents, None)):",
            "while (document := next(documents, None)) and n_bytes < BATCH_BYTES:",
        ),
    ),
    *planted(
        "jaxzoo/data/resumable.py",
        "tests/data/corpus/test_building.py",
        ("a refused input leaves its plan", "                shutil.rmtree(self.path)\n", ""),
        ("unfinished work stays", "for name in (*self.temporary, QUEUE))", "for name in (QUEUE,))"),
    ),
    *planted(
        "jaxzoo/data/resumable.py",
        "tests/data/tokens/test_tokenization.py",
        ("another plan is not noticed", "        if difference:\n", "        if False:\n"),
    ),
    *planted(
        "jaxzoo/data/corpus/built.py",
        "tests/data/tokens/test_tokenization.py",
        ("documents of a shard are those of the first one", "first = sum(self.splits[split][:index])", "first = 0"),
    ),
    *planted(
        "jaxzoo/data/resumable.py",
        "tests/data/test_resumable.py",
        (
            "the first job is never made",
            "left := [name for name in arguments if",
            "left := [name for name in [*arguments][1:] if",
        ),
        ("jobs of a killed process are not named", "directory.queue().progress()", "{}"),
    ),
    *planted(
        "jaxzoo/data/array_files.py",
        "tests/data/tokens/test_token_shards.py",
        ("flipped bits are not noticed", '!= self._digests.get(key, "")', '== ""'),
    ),
    *planted(
        "jaxzoo/data/tokens/token_shards.py",
        "tests/data/tokens/test_token_shards.py",
        ("ids of large vocabularies are cut to 16 bits", "vocab_size <= 2**16 else", "vocab_size <= 2**17 else"),
    ),
    *planted(
        "jaxzoo/data/corpus/lines.py",
        "tests/data/corpus/test_documents.py",
        ("a truncated zstd file reads as a shorter one", "            raise EOFError\n", "            pass\n"),
    ),
    *planted(
        "jaxzoo/evals/text_model.py",
        "tests/evals/test_text_model.py",
        (
            "likelihoods: the token before the continuation is scored, too",
            "[i, n - part.n_scored : n]",
            "[i, max(n - part.n_scored - 1, 0) : n]",
        ),
        (
            "likelihoods: probability leaks to ids that the tokenizer lacks",
            "model.logits(features)[..., :n_ids]",
            "model.logits(features)",
        ),
    ),
]
