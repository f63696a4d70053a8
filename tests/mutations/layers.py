"""Mutations of `transformer/layers`: file -> (tests, {name: (text, replacement)})."""

PADDED = "tests/models/test_decoder.py::test_the_vocabulary_s_padding_has_no_probability"
AROUND = "tests/layers/attention/test_attention_exact.py::test_around_attention"
DIVIDED = "tests/training/test_parallel.py::test_beside_tensor_the_axis_context_still_divides_sequences"

EDITS = {
    "transformer/config.py": (
        "tests/test_registered.py",
        {
            "only_keys_of_the_family": ("(self.first, *self.family) if self.first", "() if None"),
        },
    ),
    "transformer/config_help.py": (
        "tests/test_registered.py",
        {"families_described_once": ("def describe_keys(cls", "@functools.cache\ndef describe_keys(cls")},
    ),
    "transformer/layers/attention/attention.py": (
        "tests/test_registered.py",
        {
            "own_weights_only_shown": ("if sows or type(self).weights", "if sows and type(self).weights"),
            "a_softmax_for_all": ("return_weights=True, weigh=self.weights, **", "return_weights=True, **"),
        },
    ),
    "transformer/models/stack_checks.py": (
        "tests/test_registered.py",
        {"own_weights_in_any_kernel": ('weighs and c.kernel != "reference"', "False")},
    ),
    "transformer/layers/quantized.py": (
        "tests/layers/test_quantized.py",
        {
            "cut_not_rounded": ("jnp.round(values) if kind", "jnp.trunc(values) if kind"),
            "one_scale_for_all": ("jnp.max(jnp.abs(x), axis=axes,", "jnp.max(jnp.abs(x), axis=None,"),
            "zeros_divided_by_zero": ("x / jnp.where(scale > 0, scale, 1.0)", "x / scale"),
            "rows_left_over": ("product(count * size, len(values) - count * size)", "product(0, 0)"),
        },
    ),
    "transformer/layers/measures.py": (
        "tests/training/extras/test_measured.py",
        {
            "padding_measured": ("None if segments_bt is None else segments_bt > 0)", "None)"),
            "square_not_root": ("Sum.of(jnp.sqrt(value.total", "Sum.of((value.total"),
            "mean_not_of_squares": ("jnp.mean(jnp.square(", "jnp.mean(jnp.abs("),
            "entropy_of_padding": ("Sum.of(entropy_bhn, real_b1n), Sum", "Sum.of(entropy_bhn), Sum"),
            "masked_scores_count": (
                "jnp.where(allowed_bhns & (real_b1n > 0)[..., None], scores",
                "jnp.where(True, scores",
            ),
            "first_queries_alone": ("jnp.arange(count) * t // count", "jnp.arange(count)"),
            "memory_forgotten": ("query_indices_bt=mask.start + places_n", "query_indices_bt=places_n"),
        },
    ),
    "transformer/layers/variants/skips.py": (
        f"{AROUND} tests/decoding/test_incremental.py",
        {
            "from_the_same_height": ("outputs[mirrored]", "outputs[-1]"),
            "middle_too": ("if mirrored < self.num_layers // 2:", "if mirrored <= self.num_layers // 2:"),
            "one_weight": ("weight.astype", "jnp.ones_like(weight).astype"),
        },
    ),
    "transformer/layers/variants/scanned.py": (
        "tests/layers/test_stack.py tests/layers/test_layer_kinds.py",
        {
            "rounds_transposed": (
                "i // m), of_rounds[i % m]",
                "i % (whole // m)), of_rounds[i // (whole // m)]",
            ),
            "the_first_round_twice": ("jax.tree.map(lambda x: x[1:], places), m", "places, m"),
            "layers_not_counted": (
                "return (state, carry[1] + m), results",
                "return (state, carry[1]), results",
            ),
        },
    ),
    "transformer/layers/normalization.py": (
        "tests/layers/test_normalization.py",
        {
            "no_epsilon": ("keepdims=True) + epsilon)", "keepdims=True) + 1e-30)"),
            "mean_stays": ("x = x - jnp.mean(x, axis=-1, keepdims=True)", "x = x + 0.0"),
            "rms_centred": (
                "_normalize(x_btd, scale_d, None, self.epsilon, False)",
                "_normalize(x_btd, scale_d, None, self.epsilon, True)",
            ),
            "offset_centred": (
                "_normalize(x_btd, 1 + offset_d, None, self.epsilon, False)",
                "_normalize(x_btd, 1 + offset_d, None, self.epsilon, True)",
            ),
            "offset_is_the_scale": ("(x_btd, 1 + offset_d,", "(x_btd, offset_d,"),
            "sum_of_squares": ("jnp.mean(jnp.square(x)", "jnp.sum(jnp.square(x)"),
            "no_bias": ("else x + bias_d)", "else x)"),
            "residuals_in_float32": ("@functools.partial(jax.checkpoint, static_argnums=(3, 4))\n", ""),
            "half_precision": ("x = x_btd.astype(jnp.float32)\n", "x = x_btd\n"),
        },
    ),
    "transformer/layers/variants/clamped.py": (
        "tests/layers/test_feed_forward.py",
        {
            "gate_without_a_limit": ("    x = jnp.minimum(x, 7)\n", "    x = jnp.minimum(x, 70)\n"),
            "up_without_a_limit": ("jnp.clip(x, -7, 7) + 1", "jnp.clip(x, -70, 7) + 1"),
            "up_without_its_one": ("jnp.clip(x, -7, 7) + 1", "jnp.clip(x, -7, 7)"),
        },
    ),
    "transformer/layers/variants/other_norms.py": (
        "tests/layers/attention/test_attention_exact.py",
        {
            "each_head_alone": ("mixer.clone(head_norm=norm, parent=None)", "mixer.clone(parent=None)"),
            "one_norm_for_both": ('return self._before("feed_forward", x_btd)', "return x_normal_btd"),
        },
    ),
    "transformer/layers/feed_forward.py": (
        "tests/layers/test_feed_forward.py",
        {
            "gate_and_up_swapped": (
                "self.activation(gate_btf) * self.of_up(up_btf)",
                "self.activation(up_btf) * self.of_up(gate_btf)",
            ),
            "relu_is_gelu": ("activation=jax.nn.relu)", "activation=jax.nn.gelu)"),
            "relu_not_squared": ("return jnp.square(jax.nn.relu(x))", "return jax.nn.relu(x)"),
            "gelu_in_bfloat16_on_a_cpu": (", jnp.float32) if platform()", ", x.dtype) if platform()"),
            "geglu_is_silu": ("activation=_gelu, gated", "activation=jax.nn.silu, gated"),
        },
    ),
    "transformer/layers/variants/experts.py": (
        "tests/layers/variants/test_experts.py",
        {
            "no_bias_of_the_router": ("use_bias=self.router_bias", "use_bias=False"),
            "one_weight_is_constant": ("        if k > 1:\n", "        if k > 0:\n"),
            "weights_not_renormalised": ("        if k > 1:\n", "        if k > 9:\n"),
            "least_likely_experts": ("jnp.argsort(-probabilities_bte", "jnp.argsort(probabilities_bte"),
            "drops_in_evaluation": ("if train and self.capacity_factor:", "if self.capacity_factor:"),
            "capacity_of_one_choice": (" * self.experts_per_token / self.num", " / self.num"),
            "capacity_rounded_up": ("min(t, t * up // down)", "min(t, -(-t * up // down))"),
            "capacity_of_a_row": (
                "jnp.repeat(segments_bt, k, axis=1))",
                "jnp.repeat(segments_bt > 0, k, axis=1))",
            ),
            "capacity_by_the_row": ("jnp.array(capacities)[sizes_bt]", "capacities[-1]"),
            "experts_of_whole_sequences": ("columns if t % columns == 0 else 1", "1"),
            "parts_of_sequences_mixed_up": (
                "reshape(rows, columns, height, width, self.k, -1).swapaxes(1, 2)",
                "reshape(rows, height, columns, width, self.k, -1)",
            ),
            "capacity_with_rounding_errors": (
                "Fraction(str(self.capacity_factor))",
                "Fraction(self.capacity_factor)",
            ),
            "no_capacity_is_one": ("if longest * up < down:", "if False:"),
            "dropped_choices_take_slots": (" & kept_bn[..., None]", ""),
            "one_token_of_a_document_more": ("(experts_btk.shape) < most", "(experts_btk.shape) <= most"),
            "padding_is_computed": ("jnp.where(segments_bt > 0, jnp", "jnp.where(True, jnp"),
            "padding_counts_in_terms": (
                "valid_bt1 = valid_bt[..., None].astype",
                "valid_bt1 = jnp.ones_like(valid_bt)[..., None].astype",
            ),
            "balance_of_all_choices": (
                "(count_b1 * self.experts_per_token)",
                "(count_b1 * 1)",
            ),
            "z_not_squared": ("jnp.square(jax.nn.logsumexp", "jnp.abs(jax.nn.logsumexp"),
            "no_bias_of_sorted": ("return bias_eo[self.experts_pn]", "return bias_eo[0 * self.experts_pn]"),
            "results_not_sorted_back": ("jnp.argsort(self.order_pn, axis=-1)", "self.order_pn"),
            "buffers_not_exchanged": (
                'hidden: ClassVar[tuple[str | None, ...]] = ("group", "expert", None',
                'hidden: ClassVar[tuple[str | None, ...]] = ("batch", None, None',
            ),
            "experts_not_divided": ('("expert", *self.names)', "(None, *self.names)"),
        },
    ),
    "transformer/layers/variants/shared_expert.py": (
        "tests/layers/variants/test_shared_expert.py",
        {
            "of_the_width_of_the_others": ("d_ff=self.shared_d_ff, ", ""),
            "never_gated": ("if self.shared_gate:", "if False:"),
            "gated_by_its_logit": ("jax.nn.sigmoid(logits_bt1)", "logits_bt1"),
            "in_place_of_the_others": ("return y_btd + shared_btd", "return 0 * y_btd + shared_btd"),
            "gate_with_a_bias": ("use_bias=False", "use_bias=True"),
            "gate_in_float32": (".astype(shared_btd.dtype)", ""),
            "never_drops": ("train=train)", "train=False)"),
        },
    ),
    "transformer/layers/variants/grouped.py": (
        "tests/layers/variants/test_grouped.py tests/layers/variants/test_experts.py",
        {
            "kernel_gradient_in_half": (
                "return dx.astype(like_x.dtype), d_kernel, None",
                "return dx.astype(like_x.dtype), d_kernel.astype(dtype).astype(d_kernel.dtype), None",
            ),
            "gradient_of_own_rows": ("jax.lax.psum(d_kernel, rows) if rows", "d_kernel if rows"),
            "partial_sums": ("jax.lax.psum(y_pno, over) if over", "y_pno if over"),
            "too_few_blocks": ("(n + len(sizes_g) * (size - 1)) // size)", "n // size)"),
            "next_group_too_late": (">= after_g, axis=1)", "> after_g, axis=1)"),
            "blocks_left_over_within": ("jnp.where(left_j, n,", "jnp.where(left_j, 0,"),
            "from_the_first_row": ("+ size * within_j)", "+ within_j)"),
            "rows_of_the_next_group_too": ("jnp.where(own_s1, blocks", "jnp.where(own_s1 | True, blocks"),
            "one_factor_masked": (
                "0) for rows_n in padded)",
                "0) if rows_n is padded[0] else blocks.rows(rows_n, j) for rows_n in padded)",
            ),
            "large_blocks": ("n / (share * groups)", "n / groups"),
            "on_tpus_too": ('platform() != "tpu" and ', ""),
            "for_few_rows_too": ("< 0.75 * groups * n", "< 99 * groups * n"),
        },
    ),
    "transformer/layers/linear.py": (
        "tests/layers/test_linear.py",
        {
            "no_bias": ("y = y + bias if", "y = y if"),
            "no_bias_in_bfloat16": ("else low_bias(y, bias)", "else y"),
            "init_scale_squared": ("math.sqrt(self.init_scale / math", "(self.init_scale / math"),
        },
    ),
    "transformer/layers/low_contract.py": (
        "tests/layers/test_linear.py",
        {
            "gradient_of_x_halved": ("return dot(dy, kernel,", "return 0.5 * dot(dy, kernel,"),
            "one_row_in_another_axis": ("7 if i == axis else 0", "7 if i == 0 else 0"),
            "rows_of_eight": ("dtype), 0, 1, axis=axis)", "dtype), 0, 8, axis=axis)"),
            "one_row_as_it_is": ("(_dot_of_one_row if one_row else dot)", "dot"),
            "bias_gradient_in_the_type_of_y": ("dtype=like_bias.dtype)", "dtype=dy.dtype)"),
        },
    ),
    "transformer/layers/dot.py": (
        "tests/layers/test_linear.py",
        {
            "result_in_half": (
                "_dot_of_matrices(a, b, over_a, over_b).astype(dtype)",
                "_dot_of_matrices(a, b, over_a, over_b).astype(a.dtype).astype(dtype)",
            ),
            "float32_over_the_network": (
                "((), ())), preferred_element_type=dtype)",
                "((), ())), preferred_element_type=jnp.float32).astype(dtype)",
            ),
            "flat_on_many_devices": (
                "    if is_single_cpu():\n        return",
                "    if True:\n        return",
            ),
        },
    ),
    "transformer/layers/embedding.py": (
        f"tests/layers/test_embedding.py {PADDED} {AROUND} {DIVIDED}",
        {
            "whole_gradient_everywhere": (
                'nn.with_logical_constraint(rows.astype(self.dtype), ("lookup", "length", "lookup_embed"))',
                "rows.astype(self.dtype)",
            ),
            "tokens_are_gathered": (
                "None if isinstance(self.table, Quantized) else (self.rows",
                "None and (self.rows",
            ),
            "padding_capped": (
                "jnp.where(real_v, logits_btv, PADDED_LOGIT)",
                "jnp.where(real_v, logits_btv, -soft_cap or PADDED_LOGIT)",
            ),
            "cap_only_of_one": ("soft_cap * jnp.tanh(logits_btv / soft_cap)", "jnp.tanh(logits_btv)"),
            "padding_has_probability": ("PADDED_LOGIT = -1e9", "PADDED_LOGIT = 0.0"),
            "one_real_token_masked": (
                "logits_btv.shape[-1]) < vocab_size",
                "logits_btv.shape[-1]) < vocab_size - 1",
            ),
            "scaled_by_d": (
                "jnp.asarray(self.d_model**0.5, x_btd.dtype)",
                "jnp.asarray(self.d_model, x_btd.dtype)",
            ),
            "initial_deviation": (
                "return self.d_model**-0.5 if self.scale",
                "return self.d_model**-1 if self.scale",
            ),
        },
    ),
    "transformer/layers/recurrence.py": (
        "tests/layers/test_recurrent.py",
        {
            "gru_gates_swapped": ("return ((1 - z) * n + z * h,)", "return (z * n + (1 - z) * h,)"),
            "gru_reset_ignored": ("+ r * u[..., 2, :])", "+ u[..., 2, :])"),
            "lstm_forgets_nothing": ("c = jax.nn.sigmoid(f) * c +", "c = c +"),
            "lstm_output_linear": ("jax.nn.sigmoid(o) * jnp.tanh(c), c", "jax.nn.sigmoid(o) * c, c"),
            "forget_bias": ("gates, parts, forget = 4, 2, 1.0", "gates, parts, forget = 4, 2, 0.0"),
            "padding_advances": (
                "_where(valid, kind.advance(last, x.astype(jnp.float32), _recur(last, u, dtype)), last)",
                "kind.advance(last, x.astype(jnp.float32), _recur(last, u, dtype))",
            ),
            "document_remembers": (
                "last = _where(start, zeros if first is None else first, state)",
                "last = state",
            ),
            "gradient_crosses_documents": ("return _where(start, zeros, dlast), (dx", "return dlast, (dx"),
            "last_token_missed": (
                "((0, 0), (0, 1)), constant_values=True",
                "((0, 0), (0, 1)), constant_values=False",
            ),
            "bias_gradient": ("du.sum((0, 1))", "du.mean((0, 1))"),
        },
    ),
    "transformer/layers/alignment.py": (
        "tests/layers/attention/test_attention_basics.py tests/models/test_recurrent_encoder_decoder.py",
        {
            "no_tanh": (
                "hidden = jnp.tanh(q_btd[:, :, None] + k_bsd[:, None])",
                "hidden = q_btd[:, :, None] + k_bsd[:, None]",
            ),
            "mask_ignored": (
                "masked_softmax(scores_bts, allowed_bts)",
                "masked_softmax(scores_bts, allowed_bts | True)",
            ),
            "chunk_of_padding": ("reshape(b, -1, s)[:, :t]", "reshape(b, -1, s)[:, -t:]"),
        },
    ),
    "transformer/layers/attention/basics.py": (
        "tests/layers/attention/test_attention_basics.py",
        {
            "not_scaled": ("k_sk.T / math.sqrt(q_tk.shape[-1])", "k_sk.T"),
            "keys_are_values": (
                "return weights_ts @ v_sk\n\n\ndef scaled_scores",
                "return weights_ts @ k_sk\n\n\ndef scaled_scores",
            ),
            "temperature_inverted": ("k_sk.T / temperature) @ v_sd", "k_sk.T * temperature) @ v_sd"),
        },
    ),
    "transformer/layers/attention/rolling.py": (
        "tests/decoding/test_incremental.py",
        {
            "ring_one_off": ("last = filled - 1\n", "last = filled\n"),
        },
    ),
    "transformer/layers/attention/cache.py": (
        "tests/decoding/test_incremental.py tests/decoding/test_beam.py",
        {
            "ancestors_do_not_grow": ("jnp.pad(self.ancestors_mrs, added)", "self.ancestors_mrs"),
            "positions_from_slot_zero": (
                "jnp.arange(self.slots) - self.offsets_b[:, None]",
                "jnp.arange(self.slots) - 0 * self.offsets_b[:, None]",
            ),
            "rewind_nothing": ("filled_b=self.filled_b - n)", "filled_b=self.filled_b)"),
            "rows_not_taken": ("return jax.tree.map(lambda leaf: leaf[rows_b], self)", "return self"),
            "window_too_small": (
                "slots if reach is None else reach + rewound",
                "slots if reach is None else reach + rewound - 1",
            ),
            "no_own_tokens": (
                "jnp.where(jnp.arange(s) < start, self",
                "jnp.where(jnp.arange(s) <= start, self",
            ),
        },
    ),
    "transformer/layers/attention/positions/alibi.py": (
        "tests/layers/attention/test_positions.py",
        {
            "slopes_of_sixteen": ("2.0 ** (-4 * i / lower)", "2.0 ** (-8 * i / lower)"),
            "keys_favoured": ("return -slope_h[:", "return slope_h[:"),
        },
    ),
    "transformer/layers/attention/positions/t5.py": (
        "tests/layers/attention/test_positions.py",
        {
            "exact_one_less": ("exact = num_buckets // 2\n", "exact = num_buckets // 2 - 1\n"),
            "sides_swapped": ("jnp.where(offset > 0, side, 0)", "jnp.where(offset < 0, side, 0)"),
            "edge_one_off": ('side="right"', 'side="left"'),
        },
    ),
    "transformer/layers/attention/positions/shaw.py": (
        "tests/layers/attention/test_positions.py",
        {
            "not_scaled": ("products / math.sqrt(table.shape[1])", "products"),
            "direction_swapped": (
                "key_positions_bs[:, None, :] - query_positions_bt[:, :, None]",
                "query_positions_bt[:, :, None] - key_positions_bs[:, None, :]",
            ),
            "one_table": ('self._table("value", self.head_dim)', 'self._table("key", self.head_dim)'),
        },
    ),
    "transformer/layers/attention/positions/learned.py": (
        "tests/layers/attention/test_positions.py tests/layers/test_embedding.py",
        {
            "shifted": ("table[positions_bt + self.offset]", "table[positions_bt + self.offset - 1]"),
            "offset_ignored": ("table[positions_bt + self.offset]", "table[positions_bt]"),
            "rms_ignored": ("self.rms / TABLE_STD if self.rms else 1.0", "1.0"),
        },
    ),
    "transformer/layers/attention/positions/sinusoidal.py": (
        "tests/layers/attention/test_positions.py tests/layers/test_embedding.py",
        {
            "cosine_first": ("[jnp.sin(angle), jnp.cos(angle)]", "[jnp.cos(angle), jnp.sin(angle)]"),
            "base_to_one_over_d": ("/ width)\n    angle", "/ (width + 2))\n    angle"),
            "halves_swapped": ("[table_btd[..., ::2], table", "[table_btd[..., 1::2], table"),
        },
    ),
}
