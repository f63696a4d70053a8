"""Mutations of `transformer/decoding`: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/decoding/denoising.py": (
        "tests/experiments/test_diffusion_lm.py",
        {
            "others_are_filled_in": ("masked_bt & (rank_bt < count_b1)", "rank_bt < count_b1"),
            "masks_stay": ("-(-left_b1 // (steps - number))", "-(-left_b1 // steps)"),
            "least_sure_first": ("-worth_bt, jnp.inf", "worth_bt, jnp.inf"),
            "noise_of_another_temperature": ("logits_btv / temperature + noise", "logits_btv + noise"),
            "rows_share_their_noise": (
                "fold_in(jax.random.fold_in(rng, number), name))(rngs_b)",
                "fold_in(jax.random.fold_in(rngs_b[0], number), name))(rngs_b)",
            ),
            "from_the_right": ("-jnp.broadcast_to(jnp.arange", "jnp.broadcast_to(jnp.arange"),
        },
    ),
    "transformer/decoding/suppressed.py": (
        "tests/decoding/test_suppressed.py",
        {
            "only_less_likely": ("set(-jnp.inf)", "set(0.0)"),
            "any_first_token": ("jnp.full_like(logits_bv, -jnp.inf)", "jnp.full_like(logits_bv, 0.0)"),
            "every_token_the_first": (
                "return self.stepper.step(tokens_b, cache)\n",
                "return super().step(tokens_b, cache)\n",
            ),
            "written_first": (
                "self._without(*self.stepper.prefill(*inputs))",
                "self.stepper.prefill(*inputs)",
            ),
        },
    ),
    "transformer/decoding/sampling.py": (
        "tests/decoding/test_filters.py tests/decoding/test_sampling.py",
        {
            "temperature_multiplied": ("keepdims=True)) / jnp.clip", "keepdims=True)) * jnp.clip"),
            "top_k_one_more": ("jnp.where(k < 1, jnp.inf, k)", "jnp.where(k < 1, jnp.inf, k + 1)"),
            "top_p_without_its_last": (
                "return jnp.sum(jnp.where(above_bv, weights_bv, 0.0), axis=-1) < limit",
                "return jnp.sum(jnp.where(above_bv, weights_bv, 0.0), axis=-1) <= limit",
            ),
            "min_p_of_logits": ("< jnp.log(p)", "< p"),
            "negative_logits_in_order": (
                "jnp.where(bits_bv < 0, jnp.iinfo(jnp.int32).min - bits_bv, bits_bv)",
                "bits_bv",
            ),
            "zeros_of_two_signs": (
                "jnp.iinfo(jnp.int32).min - bits_bv",
                "bits_bv ^ jnp.iinfo(jnp.int32).max",
            ),
            "filtered_tokens_drawn": ("mass(token_b) > target_b", "mass(token_b) >= target_b"),
            "filters_not_combined": (
                "logits_bv = FILTERS[name][0](logits_bv, filters[name])",
                "logits_bv = FILTERS[name][0](logits_bv, filters[name]) if name != 'top_p' else logits_bv",
            ),
            "one_random_number": (
                "jax.vmap(jax.random.uniform)(rngs_b) * mass(last_b)",
                "jax.random.uniform(rngs_b[0]) * mass(last_b)",
            ),
        },
    ),
    "transformer/decoding/beam.py": (
        "tests/decoding/test_beam.py",
        {
            "length_penalty_inverted": ("+ 1.0)) ** length_penalty", "+ 1.0)) ** -length_penalty"),
            "end_not_counted": ("length = index + 1\n", "length = index\n"),
            "too_few_candidates": (
                "_likeliest(live.scores_bk, logits_bkv, 2 * beam_size)",
                "_likeliest(live.scores_bk, logits_bkv, beam_size)",
            ),
            "ends_beyond_the_beam": ("final_bm & (jnp.arange(scores_bm.shape[1]) < beam_size)", "final_bm"),
            "ended_stay_live": (
                "Hypotheses(jnp.where(final_bm, -jnp.inf, scores_bm), tokens_bmn)",
                "Hypotheses(scores_bm, tokens_bmn)",
            ),
            "hope_of_the_next_length_alone": (
                "jnp.maximum(normalized(live.scores_bk, length + 1), normalized(live.scores_bk, longest_b1))",
                "normalized(live.scores_bk, length + 1)",
            ),
            "caches_not_reordered": (
                "cache = stepper.reorder(cache, rows_bk.reshape(-1))",
                "rows_bk.reshape(-1)",
            ),
            "all_begin": ("jnp.where(jnp.arange(beam_size) == 0, 0.0, -jnp.inf)", "jnp.zeros(beam_size)"),
            "limit_ignored": ("| (length >= limit_b1)", "| (length >= max_new_tokens)"),
            "not_log_probabilities": ("values_bkc - total_bk1", "values_bkc"),
            "last_block_lost": ("blocks = -(-x_bkv.shape[-1] // width)", "blocks = x_bkv.shape[-1] // width"),
            "read_past_the_room": ("(state[0] < room)", "(state[0] < room + 2)"),
            "cache_without_room": ("tokens_bt.shape[1] + config.extra_tokens)", "config.extra_tokens)"),
            "source_without_end": ("[*source[: longest - 1], source[-1]]", "[*source[:longest]]"),
        },
    ),
    "transformer/decoding/speculative.py": (
        "tests/decoding/test_speculative.py",
        {
            "always_accepted": (
                "return uniform(rngs_bm) * q_bm < p_bm",
                "return uniform(rngs_bm) * q_bm < 2 * p_bm",
            ),
            "replaced_by_the_target": ("left_bv = jnp.maximum(p_bv - q_bv, 0.0)", "left_bv = p_bv"),
            "key_used_twice": ("jax.random.uniform(jax.random.fold_in(rng, 1))", "jax.random.uniform(rng)"),
            "draft_not_rewound": ("draft.rewind(draft_cache, back)", "draft_cache"),
            "target_not_rewound": ("target.rewind(target_cache, back)", "target_cache"),
        },
    ),
    "transformer/decoding/generation.py": (
        "tests/decoding/test_sampling.py tests/decoding/test_completion.py",
        {
            "keys_without_positions": (
                "rngs_b, self.positions_b + self.index + offset)",
                "rngs_b, 0 * self.positions_b + self.index + offset)",
            ),
            "limits_ignored": (
                "is_end(token_b, eos_id) | (index >= self.limits_b)",
                "is_end(token_b, eos_id)",
            ),
            "the_first_end_alone": ("jnp.isin(tokens, jnp.asarray(eos_id))", "tokens == filler(eos_id)"),
            "end_counted": ("jnp.sum(before_end_bn, axis=1)", "jnp.sum(before_end_bn, axis=1) + 1"),
        },
    ),
    "transformer/decoding/completion.py": (
        "tests/decoding/test_completion.py",
        {
            "further_ends_do_not_end": (" or token in window.further", ""),
            "window_one_more": ("self.length + 1 - read", "self.length + 2 - read"),
            "cache_grows_too_late": (
                "while capacity < min(index + n, room):",
                "while capacity < min(index, room):",
            ),
            "cache_grows_once": ("while capacity < ", "if capacity < "),
            "cache_grows_for_nothing": ("min(room, FIRST_ROOM)", "room"),
            "first_half_kept": (
                "return tokens[-(max(window.length // 2, 1) if self.new else window.length) :]",
                "return tokens[: max(window.length // 2, 1) if self.new else window.length]",
            ),
            "samples_alike": (
                "jax.vmap(jax.random.fold_in)(fold_in(rng, prompt_b), sample_b)",
                "jax.vmap(jax.random.fold_in)(fold_in(rng, prompt_b), 0 * sample_b)",
            ),
        },
    ),
    "transformer/decoding/stops.py": (
        "tests/decoding/test_stops.py",
        {
            "stop_kept": ("return text[: min((place for", "return text[: 1 + min((place for"),
        },
    ),
    "transformer/decoding/spans.py": (
        "tests/decoding/test_best_spans.py",
        {
            "the_last_of_a_text": ("best.setdefault(text(span), span)", "best[text(span)] = span"),
            "as_many_as_are_looked_at": ("if len(best) == n or", "if len(best) > n or"),
            "ends_alone": ("here, logits_w2[:, :1] + ends_wm, out=here", "here, ends_wm, out=here"),
            "last_window_wins": (
                "np.maximum(here, logits_w2[:, :1] + ends_wm, out=here)",
                "here[:] = logits_w2[:, :1] + ends_wm",
            ),
        },
    ),
}
