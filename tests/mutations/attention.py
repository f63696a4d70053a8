"""Mutations of attention and of what surrounds it: file -> (tests, {name: (text, replacement)})."""

EXACT = "tests/layers/attention/test_attention_exact.py::test_in_a_decoder_of_packed_documents"
VARIANTS = "tests/decoding/test_incremental.py::test_every_other_variant"
CASES = (
    "test_capped_scores_and_sinks",
    "test_rows_that_may_see_nothing_are_zero_and_so_are_their_gradients",
    "test_segments_groups_and_biases",
    "test_patterns",
    "test_causal_and_windowed",
    "test_sinks_are_counted_once_over_the_parts_of_a_pattern",
)
KERNELS = " ".join(f"tests/layers/attention/test_kernels.py::{case}" for case in CASES)
DROPOUT = "tests/layers/attention/test_kernels.py::test_dropout_keeps_the_mean_and_drops_its_share"
PAIRS = "tests/models/test_models_exact.py::test_an_encoder_decoder"
SEGMENTS = "tests/models/test_models_exact.py::test_transformer_xl_behind_its_memory"
PATTERNS = "tests/layers/attention/test_patterns.py"
DRAWS = f"{PATTERNS}::test_a_model_attends_to_the_blocks_that_its_heads_and_layers_draw"
PACKED = "tests/models/test_decoder.py::test_packed_documents_equal_separate_ones"

EDITS = {
    "transformer/layers/attention/kernels/__init__.py": (
        "tests/layers/attention/test_kernel_log.py",
        {
            "the_last_reason_forgotten": ("        refusals[name] = refusal\n", ""),
        },
    ),
    "transformer/layers/attention/kernels/kernel_log.py": (
        "tests/layers/attention/test_kernel_log.py",
        {
            "reasons_of_all_kernels": (
                " for kernel, refusal in refusals.items() if kernel in OF_DEVICES)",
                " for kernel, refusal in refusals.items())",
            ),
            "the_writer_stays": ("        WRITERS.remove(write)\n", "        pass\n"),
        },
    ),
    "transformer/layers/attention/whole_heads.py": (
        "tests/layers/attention/test_whole_heads.py",
        {
            "too_few": ("math.lcm(g, devices) // g", "devices // g"),
            "heads_in_turn": (
                "jnp.repeat(x_bsgk, math.lcm(g, devices) // g, axis=2)",
                "jnp.tile(x_bsgk, (1, 1, math.lcm(g, devices) // g, 1))",
            ),
            "not_in_whole_rules": ('or sharded_over("kv_heads")[1] > 1', "or devices > 1"),
        },
    ),
    "transformer/layers/attention/masks.py": (
        f"tests/layers/attention/test_masks.py {VARIANTS}",
        {
            "not_itself": ("allowed = j <= i", "allowed = j < i"),
            "documents_count_on": ("if positions_bt is None and segments_bt is not None:", "if False:"),
            "later_documents_begin_late": ("begins_bt = jnp.where(", "begins_bt = 1 + jnp.where("),
            "one_future_key": ("allowed = j <= i", "allowed = j <= i + 1"),
            "earlier_documents": (
                "queries(self.query_segments_bt) == keys(self.key_segments_bs)",
                "queries(self.query_segments_bt) >= keys(self.key_segments_bs)",
            ),
            "padding_seen": (
                "allowed &= keys(self.key_valid_bs)",
                "allowed &= keys(self.key_valid_bs) | True",
            ),
            "start_ignored": ("i = self.start + t0 + jnp", "i = t0 + jnp"),
            "padding_of_a_kernel_seen": (
                "jnp.ones((1, s), bool) if self.key_valid_bs is None and added else self.key_valid_bs",
                "self.key_valid_bs",
            ),
            "patterns_by_index": (
                "if self.counts_positions:\n                i",
                "if False:\n                i",
            ),
            "empty_slots_seen": (
                "of(self.key_valid_bs), indices_s[None] >= 0",
                "of(self.key_valid_bs), indices_s[None] >= -99",
            ),
        },
    ),
    "transformer/layers/attention/patterns/window.py": (
        "tests/layers/attention/test_masks.py",
        {
            "window_one_wider": ("(abs(i - j) < self.size * self", "(abs(i - j) <= self.size * self"),
            "not_dilated": (" & ((i - j) % self.dilation == 0)", ""),
        },
    ),
    "transformer/layers/attention/patterns/strided.py": (
        "tests/layers/attention/test_masks.py",
        {
            "strides_of_the_row": ("| ((i - j) % self.stride == 0)", "| (j % self.stride == 0)"),
        },
    ),
    "transformer/layers/attention/patterns/fixed.py": (
        "tests/layers/attention/test_masks.py",
        {
            "one_summary": (">= self.stride - self.summary)", ">= self.stride - 1)"),
        },
    ),
    "transformer/layers/attention/patterns/global_tokens.py": (
        "tests/layers/attention/test_masks.py",
        {
            "queries_blind": ("| (j < self.tokens) | (i < self.tokens)", "| (j < self.tokens)"),
        },
    ),
    "transformer/layers/attention/patterns/blocks.py": (
        "tests/layers/attention/test_masks.py",
        {
            "same_distance_for_all_seeds": ("40503 + self.seed * 7919 % 9973", "40503"),
        },
    ),
    "transformer/layers/attention/attention.py": (
        f"{EXACT} {DRAWS}",
        {
            "same_draws_in_all_layers": ("0 if mask.layer is None else mask.layer", "0"),
            "same_draws_of_all_heads": ("jnp.arange(n) + n * (", "0 * jnp.arange(n) + n * ("),
            "no_key_norm": ("self.key_norm(k_bsgk) if", "0 * self.key_norm(k_bsgk) + k_bsgk if"),
            "no_query_norm": ("self.query_norm(q_bthk) if", "0 * self.query_norm(q_bthk) + q_bthk if"),
            "not_scaled": ("return self.head_dim**-0.5", "return 1.0"),
            "no_sinks": ("sinks_h=self._sinks(q_bthk.shape[2]))", "sinks_h=None)"),
            "no_cap": ("Scoring(soft_cap=self.soft_cap, ", "Scoring("),
            "keys_not_rotated": (
                "self.key_norm(k_bsgk) if self.qk_norm else k_bsgk, positions_bs)",
                "self.key_norm(k_bsgk) if self.qk_norm else k_bsgk, 0 * positions_bs)",
            ),
            "values_are_keys": (
                "nn.with_logical_constraint(v_bsgk, axes)",
                "nn.with_logical_constraint(k_bsgk, axes)",
            ),
            "no_pattern": ("if self.pattern is not None:", "if False:"),
            "first_query_bias": (
                "mask, positions_bt, positions_bt, train)",
                "mask, positions_bt, positions_bt * 0, train)",
            ),
        },
    ),
    "transformer/layers/attention/latent.py": (
        EXACT,
        {
            "no_norm": (
                "self.latent_norm(self.latent(x_bsd))",
                "0 * self.latent_norm(self.latent(x_bsd)) + self.latent(x_bsd)",
            ),
            "scale_of_multi_head": (
                "return (self.head_dim + self.head_dim // 2) ** -0.5",
                "return self.head_dim**-0.5",
            ),
            "rotary_queries_not_rotated": (
                "self.position.rotate(self.rotary_query(x_btd), positions_bt)",
                "self.rotary_query(x_btd)",
            ),
        },
    ),
    "transformer/layers/mixers/plain.py": (
        EXACT,
        {
            "not_scaled": ("return self.d_model**-0.5", "return 1.0"),
            "values_rotated": (
                "positions_bs), x_bs1d",
                "positions_bs), self.position.rotate(x_bs1d, positions_bs)",
            ),
        },
    ),
    "transformer/layers/attention/positions/relative_sinusoidal.py": (
        f"{EXACT} tests/layers/attention/test_positions.py",
        {
            "no_u": ("return q_bthk + self._parameter(", "return q_bthk + 0 * self._parameter("),
            "no_v": (
                "q_bthk.astype(jnp.float32) + self._parameter(",
                "q_bthk.astype(jnp.float32) + 0 * self._parameter(",
            ),
            "not_scaled": ("query / math.sqrt(head_dim)", "query"),
            "direction_swapped": ("b * sine - a * cosine", "a * cosine - b * sine"),
        },
    ),
    "transformer/layers/attention/positions/rope.py": (
        f"tests/layers/attention/test_rope.py {EXACT}",
        {
            "other_direction": (
                "[a * cosine - b * sine, a * sine + b * cosine, rest]",
                "[a * cosine + b * sine, b * cosine - a * sine, rest]",
            ),
            "frequencies_of_the_whole_head": (
                "* self._scaled(half)[0]",
                "* self._scaled(x_bthk.shape[-1] // 2)[0][:half]",
            ),
            "frequencies_to_the_root": (
                "dtype=jnp.float32) / half), 1.0",
                "dtype=jnp.float32) / (2 * half)), 1.0",
            ),
            "linear_multiplies": ("length)[0] / factor, 1.0", "length)[0] * factor, 1.0"),
            "ntk_power": ("factor ** (half / max(half - 1, 1))", "factor ** (half / max(half, 1))"),
            "yarn_keeps_all": ("(1 - divided + divided / factor)", "1"),
            "yarn_edge": (
                "first = max(down(pair_with(32)), 0)",
                "first = max(down(pair_with(16)), 0)",
            ),
        },
    ),
    "transformer/layers/attention/kernels/position_scoring.py": (
        f"{EXACT} {KERNELS}",
        {
            "no_bias": ("scores_bhts if bias is None else scores_bhts + bias", "scores_bhts"),
            "no_added_values": ("return out_bhtk if added_bthk is None else", "return out_bhtk if True else"),
            "positions_of_the_first_block": (
                "cut(self.query_positions_bt, t0, t, 1)",
                "cut(self.query_positions_bt, 0, t, 1)",
            ),
        },
    ),
    "transformer/layers/attention/kernels/scores.py": (
        f"{EXACT} {KERNELS} tests/layers/attention/test_dropped_weights.py",
        {
            "scale_of_width": ("(self.scale or 1 / math.sqrt", "(1 / math.sqrt"),
            "no_sinks": ("total + jnp.exp(sinks_h[:, None, None] - top)", "total"),
            "cap_half": (
                "jnp.tanh(scores_bhts / self.soft_cap)",
                "jnp.tanh(scores_bhts / (2 * self.soft_cap))",
            ),
            "dropout_shrinks": ("weights * (2**16 / (2**16 - count))", "weights"),
            "a_word_for_one_bit": ("halves >= count", "halves > count - 2**15"),
            "one_half_of_a_word": (".reshape(*before, -1)", "[..., :1].repeat(2, -1).reshape(*before, -1)"),
            "nothing_is_kept": (", 2**16 - 1)", ", 2**16)"),
            "nan_without_keys": ("return e / jnp.where(total == 0, 1.0, total)", "return e / total"),
            "little_dropout_is_none": ("rate == 0.0 or rng is None", "rate < 0.5 or rng is None"),
        },
    ),
    "transformer/layers/attention/kernels/unrolled.py": (
        KERNELS,
        {
            "past_one_less": ("past = min(mask.start + end, s)", "past = min(mask.start + end - 1, s)"),
            "sinks_forgotten": (
                "total = sum_of(e, top, scoring.sinks_h)",
                "total = sum_of(e, top, None)",
            ),
            "nan_without_keys": ("(out / jnp.where(total == 0, 1.0, total))", "(out / total)"),
            "positions_of_the_first_block": (
                "scoring.block(start, end - start, 0, past)",
                "scoring.block(0, end - start, 0, past)",
            ),
        },
    ),
    "transformer/layers/attention/kernels/cached.py": (
        "tests/layers/attention/test_cached.py",
        {
            "no_sinks": (
                "masked_softmax(scores_bhts, allowed, scoring.sinks_h)",
                "masked_softmax(scores_bhts, allowed)",
            ),
            "no_added_values": ("scoring.with_values(out_bgqk.reshape", "(lambda x, _: x)(out_bgqk.reshape"),
        },
    ),
    "transformer/layers/attention/kernels/shared_keys.py": (
        "tests/layers/attention/test_cached.py",
        {
            "own_keys_alone": (
                "own_mars = self.ancestors_mrs[:, None] ==",
                "own_mars = 0 * self.ancestors_mrs[:, None] ==",
            ),
        },
    ),
    "transformer/layers/attention/kernels/blockwise.py": (
        f"{KERNELS} {DROPOUT}",
        {
            "old_sums_not_rescaled": ("decay * total + jnp.sum(", "total + jnp.sum("),
            "old_outputs_not_rescaled": ("out = decay * out + blocks", "out = out + blocks"),
            "softmax_gradient": (
                "pull_scores(weights * (dweights - mean))",
                "pull_scores(weights * dweights)",
            ),
            "sink_gradient": ("dsinks_h = -jnp.sum(", "dsinks_h = jnp.sum("),
            "sinks_in_every_part": ("learned if n == 0 else (learned[0], None)", "learned"),
            "parts_not_weighed": ("(e * first[0] + more_e * second[0])", "(first[0] + more_e * second[0])"),
            "nan_without_keys": ("return jnp.where(total == 0, 1.0, total)", "return total"),
            "half_the_dropout": ("drop(e_bhts, self.rate, rng)", "drop(e_bhts, self.rate / 2, rng)"),
        },
    ),
    "transformer/layers/attention/kernels/parts.py": (
        f"tests/layers/attention/test_parts.py {KERNELS}",
        {
            "missing_keys_seen": ("if valid_bt is None and missing", "if valid_bt is None and False"),
            "documents_of_the_end_skipped": (
                "(i[0] <= j[1]) & (j[0] <= i[1])",
                "(i[0] < j[1]) & (j[0] <= i[1])",
            ),
            "rows_mixed": ("there = (places >= 0)", "there = (places >= -1)"),
            "gaps_of_keys_seen": (
                "there_bt if valid_bt is None else",
                "there_bt | True if valid_bt is None else",
            ),
            "first_place_of_gaps": (
                "same_bt & _taken(there_bp, place_bt, 1)",
                "_taken(there_bp, place_bt, 1)",
            ),
        },
    ),
    "transformer/layers/attention/views.py": (
        f"tests/layers/attention/test_parts.py {KERNELS}",
        {
            "ends_one_earlier": ("[:, -self.count :]", "[:, -self.count - 1 : -1]"),
            "residues_from_the_first_query": (
                "_grid(first * n, start + t, n, start).T",
                "_grid(start, start + t, n, start).T",
            ),
            "other_queries_begin_late": (
                "np.arange(self.count, s)[None], start - self.count)",
                "np.arange(self.count, s)[None], start)",
            ),
            "runs_of_the_query": ("first = start // self.size * self.size", "first = start"),
            "padding_in_one_run": ("| (length_bt % size == 0)", ""),
            "runs_that_do_not_fit": ("number_bt[:, -1:] < runs", "number_bt[:, -1:] < 99 * runs"),
        },
    ),
    "transformer/layers/attention/kernels/cudnn.py": (
        "tests/layers/attention/test_platform_kernels.py",
        {
            "columns_in_short_rows": ("faster = t * s > SHORT and", "faster ="),
            "columns_where_they_do_not_fit": (
                "t * s > SHORT and k + _added_width(t, s) <= _widest()",
                "t * s > SHORT",
            ),
            "segments_of_one_bit": ("return np.arange(max(t, s).bit_length())", "return np.arange(1)"),
            "invalid_keys_seen": ("jnp.where(valid_bs, -1.0, -3.0)", "jnp.where(valid_bs, -1.0, -1.0)"),
            "scores_not_far_apart": ("np.log2(APART / (2 * scale))", "np.log2(APART / 2 * scale)"),
            "queries_without_keys": ("    if seen_bhts is not None:", "    if False:"),
            "invalid_own_keys": ("if mask.own_keys and mask.key_valid_bs is None", "if mask.own_keys"),
            "searched_in_vain": ("None if mask.own_keys and", "None if False and"),
            "scale_of_all_columns": ("scoring.scale or k**-0.5", "scoring.scale or (k + 16) ** -0.5"),
        },
    ),
    "transformer/layers/attention/kernels/splash.py": (
        "tests/layers/attention/test_platform_kernels.py",
        {
            "slopes_rounded": ("for _ in range(3)", "for _ in range(1)"),
            "two_digits": ("digits = distance_bs // DIGIT**2,", "digits = 0 * distance_bs,"),
            "distances_to_future_keys": ("alibi and (not mask.causal or", "alibi and ("),
            "padding_kept": ("[:, :, :t, : v_bsgk.shape[-1]]", "[:, :, :t]"),
            "padding_seen": ("(whole_s == s or (mask.causal", "(True or (mask.causal"),
            "queries_without_keys": (
                "    if _marked(mask):  # the output",
                "    if False:  # the output",
            ),
        },
    ),
    "transformer/layers/attention/kernels/splash_parts.py": (
        "tests/layers/attention/test_ring_of_splash.py",
        {
            "other_passes_of_jax_called": ('if known else f"jax', 'if True else f"jax'),
            "means_of_masked_values": ("jnp.where(seen_bht1, out_bhtk, 0.0)", "out_bhtk"),
            "masked_keys_counted": ("jnp.where(seen_bht1, norm_bht1, -jnp.inf)", "norm_bht1"),
            "outputs_left_out_of_gradients": ("learned[1], out_htk,", "learned[1], 0 * out_htk,"),
            "sinks_of_one_row": ("jnp.sum(dsinks_bh, axis=0)", "dsinks_bh[0]"),
        },
    ),
    "transformer/layers/attention/kernels/ring.py": (
        "tests/layers/attention/test_ring.py tests/layers/attention/test_ring_of_splash.py",
        {
            "heads_on_every_device": ('sharded_over("heads")[0] if fused else ()', "()"),
            "no_soft_cap": ("soft_cap=scoring.soft_cap, scale=1.0)", "scale=1.0)"),
            "later_device": ("later = (n > self.index)", "later = (n >= self.index)"),
            "blocks_not_turned": ("jnp.where(self.index % 2 == 0, x_rbt, x_rbt[::-1])", "x_rbt"),
        },
    ),
    "transformer/layers/block.py": (
        f"{PAIRS} {EXACT} tests/models/test_encoder_decoder.py tests/test_registered.py",
        {
            "parallel_after_attention": (
                "self.feed_forward(self.beside(x_btd, x_normal_btd),",
                "self.feed_forward(y_btd,",
            ),
            "outputs_as_they_are": ("in BEHIND:", 'in ("sandwich",):'),
            "inputs_of_all": ("in BEFORE and", 'in (*BEFORE, "output") and'),
            "feed_forward_twice": ("is not None and not self.parallel:", "is not None:"),
            "residuals_of_any_type": ("y_btd = y_btd.astype(x_btd.dtype)", "y_btd = y_btd"),
            "normed_residuals_of_any_type": ("(x_btd).astype(x_btd.dtype)", "(x_btd)"),
            "no_residual": ("_divided(x_btd + _divided(", "_divided(_divided("),
            "other_sources_seen": ("memory, memory_mask or Mask(), train)", "memory, Mask(), train)"),
        },
    ),
    "transformer/layers/stack.py": (
        "tests/layers/test_layer_kinds.py tests/layers/variants/test_sharing.py tests/layers/test_stack.py "
        + VARIANTS,
        {
            "one_kind_of_layer": ("return self.blocks[i % len(self.blocks)]", "return self.blocks[0]"),
            "layers_of_a_kind_alike": (
                "iter(_unstack(tree, kinds.count(kind)))",
                "iter(_unstack(tree, kinds.count(kind))[:1] * self.num_layers)",
            ),
            "nothing_is_tied": ("return x[:1] if tied else x", "return x"),
            "nothing_is_handed_on": ("SHARED: shared}", "SHARED: {}}"),
        },
    ),
    "transformer/models/decoder.py": (
        f"tests/decoding/test_incremental.py {PACKED}",
        {
            "prompts_not_moved": ("offsets_b = width - lengths_b", "offsets_b = 0 * lengths_b"),
            "padding_seen": ("key_valid_bs=key_positions_bs >= 0", "key_valid_bs=key_positions_bs >= -99"),
            "positions_of_slots": (
                "jnp.maximum(slots_t - cache.offsets_b[:, None], 0)",
                "slots_t + 0 * cache.offsets_b[:, None]",
            ),
            "documents_see_each_other": (
                "Mask.self_attention(segments_bt, positions_bt, causal=True)",
                "Mask.self_attention(None, positions_bt, causal=True)",
            ),
            "cache_not_filled": (
                "filled_b=cache.filled_b + tokens_bt.shape[1]",
                "filled_b=cache.filled_b + 1",
            ),
        },
    ),
    "transformer/models/encoder.py": (
        "tests/layers/attention/test_attention_exact.py::test_in_an_encoder_of_packed_texts",
        {
            "types_ignored": (
                "jnp.zeros_like(tokens_bt) if types_bt is None else types_bt",
                "jnp.zeros_like(tokens_bt)",
            ),
            "texts_see_each_other": (
                "Mask.self_attention(segments_bt, positions_bt)",
                "Mask.self_attention(None, positions_bt)",
            ),
            "causal": ("stack = c.stack()", "stack = c.stack(causal=True)"),
        },
    ),
    "transformer/models/encoder_decoder.py": (
        f"tests/models/test_encoder_decoder.py {PAIRS}",
        {
            "source_causal": (
                "Mask.self_attention(segments_bs, positions_bs)",
                "Mask.self_attention(segments_bs, positions_bs, causal=True)",
            ),
            "other_sources_seen": (
                "memory_mask=Mask(segments_bt, source_segments_bs)",
                "memory_mask=Mask()",
            ),
            "padding_of_sources_read": (
                "if segments_bt is None and source_segments_bs is not None:",
                "if False:",
            ),
            "begins_with_zero": ("jnp.full(batch, self.bos_id, jnp.int32)", "jnp.full(batch, 0, jnp.int32)"),
            "padding_of_sources_seen": (
                "memory_mask=Mask(query_indices_bt=places_m1, key_valid_bs=cache.valid_ms)",
                "memory_mask=Mask(query_indices_bt=places_m1)",
            ),
            "two_tables": (
                "self.source_embedding = own or self.embedding",
                "self.source_embedding = self.embedding",
            ),
        },
    ),
    "transformer/models/transformer_xl.py": (
        f"{SEGMENTS} tests/models/test_transformer_xl.py",
        {
            "gradient_into_the_memory": ("jax.lax.stop_gradient(", "("),
            "other_documents_remembered": ("self.segments_bm * continues_b[:, None]", "self.segments_bm"),
            "positions_not_shifted": ("return mixer.shift(cache, -t)", "return cache"),
        },
    ),
}
