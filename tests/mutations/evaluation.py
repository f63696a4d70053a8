"""Mutations of `transformer/evaluation`: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/evaluation/ranking.py": (
        "tests/experiments/test_contrastive.py::test_rankings_are_those_of_scipy_and_scikit_learn "
        "tests/experiments/test_contrastive.py::test_equal_scores_are_ranked_in_their_order",
        {
            "equals_first": ("np.sum(score_n[:i] == score_n[i])", "np.sum(score_n == score_n[i])"),
            "ranks_from_0": ("ranks.append(1 + np.array(before))", "ranks.append(np.array(before))"),
            "one_more": ("np.mean(rank_r <= k)", "np.mean(rank_r < k)"),
            "never_ideal": (" / gain(np.arange(1, len(rank_r) + 1))", " / gain(np.arange(1, k + 1))"),
            "first_of_equals": ("np.cumsum(counts) - (counts - 1) / 2", "np.cumsum(counts)"),
        },
    ),
    "experiments/contrastive.py": (
        "tests/experiments/test_contrastive.py",
        {
            "all_kept": ("jax.lax.map(jax.checkpoint(read), numbered)", "jax.lax.map(read, numbered)"),
            "equal_dropout": ("jax.random.fold_in(rng, 1)}", "rng}"),
            "parts_not_joined": (
                "return join_rows(jax",
                "return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), jax",
            ),
            "longer_than_1": ("map(unit, parts) if c.model.normalize", "parts if c.model.normalize"),
            "widths_not_trained": ("jnp.mean(jnp.stack(losses), axis=0)", "losses[-1]"),
            "any_width": ("if not all(0 < part < width", "if not all(0 < part"),
        },
    ),
    "experiments/evaluation/vector_scores.py": (
        "tests/experiments/test_contrastive.py::test_retrieval_is_that_of_brute_force "
        "tests/experiments/test_contrastive.py::test_similarity_and_classes_without_training",
        {
            "answers_are_wrong": ("            score_n[numbers] = -np.inf\n", ""),
            "one_answer": ("answers[int(query_id)].add(", "answers[int(query_id)].__init__("),
            "padding_is_a_passage": ("if number >= 0:", "if True:"),
            "labels_as_they_come": (
                "self._labels = sorted({*labels})",
                "self._labels = sorted({*labels})[::-1][:1] * 2",
            ),
        },
    ),
    "experiments/evaluation/text_vectors.py": (
        "tests/commands/test_embed.py",
        {
            "padding_is_read": (
                "(jnp.arange(tokens_bt.shape[1]) < lengths_b[:, None])",
                "(lengths_b[:, None] + 0 * tokens_bt > 0)",
            ),
            "in_order_of_length": ("[np.argsort(order)]", ""),
            "one_block_more": ('mask"].layer < count', 'mask"].layer <= count'),
            "normed": ('if module.name == "final_norm" else', 'if module.name == "" else'),
            "never_normalised": ("unit(x_bd) if self._normalize else x_bd", "x_bd"),
        },
    ),
    "transformer/evaluation/harness.py": (
        "tests/evaluation/test_harness.py",
        {
            "always_a_start": ("if self._start and add_special_tokens", "if add_special_tokens"),
            "one_token_less": ("[-(self._experiment.longest + 1) :]", "[-self._experiment.longest :]"),
            "one_end": ("rolling=True, further=ends", "rolling=True"),
            "no_room_is_left": ("prompts = (prompt[-most:] for prompt in prompts)", "pass"),
            "continued_after_its_end": (
                'return render(before, True) + last["content"]',
                "return render(chat_history)",
            ),
            "drawn_though_greedy": ("if sampled else 0.0", "if True else 0.0"),
            "unsorted": ("completions.update(zip(order, texts", "completions.update(zip(numbers, texts"),
        },
    ),
    "transformer/evaluation/shared_prefix.py": (
        "tests/evaluation/test_shared_prefix.py",
        {
            "of_another_prefix": ("jnp.repeat(first_bv, copies, axis=0)", "jnp.tile(first_bv, (copies, 1))"),
            "in_fewer_bits": ('(sampling.weights, sampling.cache) == ("float32", "auto")', "sampling"),
            "states_too": ("all(kind.has_attention for kind", "any(kind.has_attention for kind"),
            "never_shared": ("if len(numbers) > 1]", "if len(numbers) > 99]"),
            "likeliest_of_padding_too": ("likeliest_m[:n].all()", "likeliest_m.all()"),
        },
    ),
    "experiments/evaluation/multiple_choice.py": (
        "tests/test_multiple_choice.py",
        {
            "the_unlikeliest": ("log_p.argmax()", "log_p.argmin()"),
            "not_by_length": ("log_p / [len(choice)", "log_p / [1 + 0 * len(choice)"),
            "no_space": ('else f" {choice}"', "else choice"),
            "true_is_a_number": ("type(number) is not int", "not isinstance(number, int)"),
        },
    ),
    "transformer/evaluation/statistics/paired_differences.py": (
        "tests/commands/test_table.py",
        {
            "on_one_side": ("1 - error / 2)", "1 - error)"),
            "as_many_degrees_as_pairs": ("stdtrit(n - 1, ", "stdtrit(n, "),
            "of_one_pair": ("if n < 2:", "if False:"),
        },
    ),
    "transformer/evaluation/documents.py": (
        "tests/evaluation/test_documents.py",
        {
            "lowest_first": ("(-document.loss, document.number)", "(document.loss, document.number)"),
            "bits_are_nats": (" / self.num_bytes / math.log(2)", " / self.num_bytes"),
            "losses_of_other_targets": (
                "if not math.isclose(parts_3[0].sum(), total, rel_tol=1e-3, abs_tol=1e-3):",
                "if False:",
            ),
        },
    ),
    "transformer/evaluation/classifier_scores.py": (
        "tests/evaluation/test_classification.py",
        {
            "windows_by_sigmoid": ("p = jax.nn.softmax(logits", "p = jax.nn.sigmoid(logits"),
            "padding_is_a_window": ("(weights.reshape(-1) > 0).astype", "(weights.reshape(-1) >= 0).astype"),
            "parts_of_texts_weigh_one": ("jnp.asarray(shares_n))", "jnp.asarray(shares_n > 0))"),
            "loss_of_the_prediction": (
                "log_p, labels[:, None], axis=-1",
                "log_p, predicted[:, None], axis=-1",
            ),
        },
    ),
    "transformer/evaluation/mixed_likelihood.py": (
        "tests/evaluation/test_mixed_likelihood.py",
        {
            "sizes_of_the_sources": ("share / targets if targets", "share if targets"),
            "targets_of_the_last_term": (
                "sum(float(term.weight) for term in counted)",
                "[float(term.weight) for term in counted][-1]",
            ),
            "terms_of_the_first": (" if all(name in part for part in rest)", ""),
        },
    ),
    "transformer/evaluation/statistics/width_powers.py": (
        "tests/evaluation/statistics/test_coordinates.py",
        {
            "changes_of_means": (
                "np.abs(np.subtract(x, initial, dtype=np.float64)).mean()",
                "np.abs(np.mean(x, dtype=np.float64) - np.mean(initial, dtype=np.float64))",
            ),
            "means_in_the_own_type": (", dtype=np.float64)", ")"),
            "layers_not_numbered": ("counts[stack] += 1", "pass"),
            "growth_only": ("or falls.all()", ""),
            "falls_of_all_widths": ("np.maximum(changes, ", "np.minimum(changes, "),
            "margins_of_both_sides": ("(high - low) / 2 for", "high - low for"),
            "power_of_base_ten": ("log_w = np.log(", "log_w = np.log10("),
        },
    ),
}
