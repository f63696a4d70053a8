"""Mutations of what reads and edits models: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/interpret/activations.py": (
        "tests/interpret/test_activations.py tests/interpret/test_interventions.py",
        {
            "programs_of_other_visitors": ("with _compiled_for(sites.visitors):", "with _compiled_for(()):"),
            "visitors_stay": ("sites.visitors = before", "pass"),
            "layers_stay_in_a_loop": ('scan_layers=False, remat="none"', 'remat="none"'),
            "a_star_is_several_names": ('"[^/]*"', '".*"'),
            "scores_of_keys_that_are_masked": ("jnp.where(allowed, scores_bhts, -jnp.inf)", "scores_bhts"),
            "the_kernel_that_keeps_no_weights": (
                'method == "run_kernel" and self._want_weights(path)',
                'method == "run_kernel" and False',
            ),
            "inputs_as_they_were": (
                'args = self._shown(f"{path}/input", args[0]), *args[1:]',
                'self._shown(f"{path}/input", args[0])',
            ),
            "weights_that_change_nothing": (
                'scores_bhts = self._shown(f"{path}/scores", masked_bhts)',
                'self._shown(f"{path}/scores", masked_bhts)',
            ),
            "the_last_call_alone": ('f"{path}#{calls + 1}" if calls else path', "path"),
            "scanned_layers_are_one": ("isinstance(layer, jax.core.Tracer)", "layer is jax.core.Tracer"),
            "one_name_in_the_step_form": (
                '"blocks" if module.cross_attention is None else "decoder"',
                '"blocks"',
            ),
        },
    ),
    "transformer/interpret/interventions.py": (
        "tests/interpret/test_interventions.py",
        {
            "edits_are_everywhere": (
                "return new if where is None else jnp.where(where, new, x)",
                "return new",
            ),
            "any_of_the_conditions": ("else where & mask", "else where | mask"),
            "positions_are_places": (
                "jnp.isin(positions_bt, jnp.asarray(self.positions))",
                "jnp.isin(jnp.arange(positions_bt.shape[1])[None], jnp.asarray(self.positions))",
            ),
            "keys_are_queries": ("(1, 3) if over_keys", "(1, 2) if over_keys"),
            "heads_of_scores": ("axis = 1 if over_keys else 2", "axis = 2"),
            "units_are_unchecked": ("not 0 <= i < count", "not i < count"),
            "means_of_rows_alone": ("axis=0 if is_over_keys(path) else (0, 1)", "axis=0"),
            "the_first_rows": ("rows_nt[drawn_b]", "rows_nt[: x.shape[0]]"),
            "steered_once": ("x + scale * jnp", "x + jnp"),
            "paths_are_not_checked": ("if kind is None and self._seen:", "if not self._seen:"),
            "values_by_place": (
                "jnp.minimum(places_bt, values.shape[1] - 1)",
                "jnp.zeros_like(places_bt)",
            ),
            "later_tokens_get_the_last_value": (
                "places_bt < values.shape[1], values_bt, x",
                "True, values_bt, x",
            ),
            "the_first_edit_alone": (
                "x = edit(path, x, positions_bt)",
                "return edit(path, x, positions_bt)",
            ),
        },
    ),
    "transformer/interpret/instruments/lens.py": (
        "tests/interpret/test_instruments.py tests/commands/test_inspect.py",
        {
            "layers_without_the_norm": ('method="logits")', 'method="unembed")[..., : model.vocab_size]'),
            "lenses_of_the_embedding": (".argmax(-1)]", ".argmax(-1)[:, :1]]"),
        },
    ),
    "transformer/interpret/instruments/attribution.py": (
        "tests/interpret/test_instruments.py tests/commands/test_inspect.py",
        {
            "the_first_token": ("path: x[:, -1] for path", "path: x[:, 0] for path"),
            "norms_keep_the_mean": (
                "part_bd - jnp.mean(part_bd, axis=-1, keepdims=True)",
                "part_bd - 0",
            ),
            "offsets_are_scales": ('1 + params["offset"]', 'params["offset"]'),
            "biases_of_heads_are_lost": ('if "bias" in output:', "if False:"),
            "biases_of_the_output_are_lost": (
                "axis=-1) + difference(jnp.zeros_like(y_bd))",
                "axis=-1)",
            ),
            "heads_and_their_sum": ('elif f"{path}/output/input" not in values:', "else:"),
            "attention_is_nothing": ("values_rc.sum(axis=1)", "values_rc[:, 0]"),
        },
    ),
    "transformer/interpret/instruments/answers.py": (
        "tests/interpret/test_instruments.py tests/commands/test_inspect.py",
        {
            "other_texts_are_ignored": ("if subject.against is not None:", "if False:"),
            "the_third_answer": (
                "answer, rival = ranked(subject.prompt)[:2]",
                "answer, _, rival = ranked(subject.prompt)[:3]",
            ),
            "nothing_to_bring_back": ("abs(clean - corrupted) < 1e-6", "False"),
        },
    ),
    "transformer/interpret/instruments/base.py": (
        "tests/interpret/test_instruments.py tests/commands/test_inspect.py",
        {
            "texts_of_any_length": ("if clean_1t.shape != corrupted_1t.shape:", "if False:"),
        },
    ),
    "transformer/interpret/instruments/patching.py": (
        "tests/interpret/test_instruments.py",
        {
            "patched_everywhere": ("& (positions_1t == place_2[1])", "& (positions_1t >= 0)"),
            "patched_in_all_layers": ("(place_2[0] == rows[numbers[path]])", "(place_2[0] >= 0)"),
            "not_normalised": ("- corrupted) / (clean - corrupted)", "- corrupted)"),
        },
    ),
    "transformer/interpret/instruments/heads.py": (
        "tests/interpret/test_instruments.py",
        {
            "the_token_itself": ("jnp.roll(tokens_bt, 1, axis=1)", "tokens_bt"),
            "the_first_token_follows_the_last": (" & (places > 0)", ""),
            "the_token_after": ("offset=-1", "offset=0"),
            "scores_of_all_queries": ("follows_bts.any(axis=-1)", "follows_bts.any(axis=-1) | True"),
            "one_repetition": ("[once_bt, once_bt]", "[once_bt, once_bt[::-1]]"),
        },
    ),
    "transformer/interpret/instruments/attention_rollout.py": (
        "tests/interpret/test_attention_rollout.py",
        {
            "no_residual_stream": ("jnp.eye(weights_bhts.shape[-1])) / 2", "0) / 1"),
            "the_other_order": ("mixed_bts @ rollout_bts", "rollout_bts @ mixed_bts"),
            "the_largest_head": ("jnp.mean(weights_bhts, axis=1)", "jnp.max(weights_bhts, axis=1)"),
            "the_first_patch_is_pooled": ("rollout_ts[0] if before else", "rollout_ts[0] if True else"),
            "layers_without_weights_are_left_out": ("if len(weights) < len(layers):", "if False:"),
        },
    ),
    "transformer/interpret/instruments/neurons.py": (
        "tests/interpret/test_neurons.py",
        {
            "the_last_of_equal_ones": (
                'np.argsort(-part_fm, axis=1, kind="stable")[:, :k]',
                'np.argsort(part_fm, axis=1, kind="stable")[:, ::-1][:, :k]',
            ),
            "numbers_of_each_part": ("count + np.arange", "0 + np.arange"),
            "moments_of_the_last_part": ("            sums += top[2]", "            sums += 0"),
            "padding_counts": ("[batch.valid_bt]", "[batch.valid_bt | True]"),
            "contexts_of_the_row_before": ('side="right")) - 1', 'side="left")) - 1'),
        },
    ),
    "transformer/interpret/instruments/path_patching.py": (
        "tests/interpret/test_path_patching.py",
        {
            "all_heads_receive": (
                "(jnp.arange(heads)[:, None] == head) &",
                "(jnp.arange(heads)[:, None] >= 0) &",
            ),
            "earlier_layers_see_it_too": (
                "layer == _layer(path), change_1td",
                "layer >= _layer(path), change_1td",
            ),
            "the_logits_see_it_always": ("layer == n, change_1td", "layer <= n, change_1td"),
            "senders_write_the_opposite": ("heads[path] - base[path]", "base[path] - heads[path]"),
            "any_norm_placement": ('if c.norm_placement != "pre":', "if False:"),
        },
    ),
    "transformer/interpret/instruments/tuned_lens.py": (
        "tests/interpret/test_tuned_lens.py",
        {
            "the_other_divergence": (
                "jnp.exp(last_btv) * (last_btv - log_p(x_btd))",
                "jnp.exp(log_p(x_btd)) * (log_p(x_btd) - last_btv)",
            ),
            "padding_counts": ("kl_bt * weights_bt", "kl_bt"),
            "no_norm": ('method="logits"', 'method="unembed"'),
            "the_maps_are_not_trained": (
                "return optax.apply_updates(maps, updates), state",
                "return maps, state",
            ),
            "no_identity": ("return x_nbtd + jnp", "return 0 + jnp"),
        },
    ),
    "transformer/interpret/instruments/probes.py": (
        "tests/interpret/test_probes.py",
        {
            "the_intercept_is_penalised": ("[1.0] * (x_nd.shape[1] - 1) + [0]", "[1.0] * x_nd.shape[1]"),
            "trained_on_all_rows": ("ridge(x_nd[:half], y_n[:half])", "ridge(x_nd, y_n)"),
            "control_of_each_token": (
                "np.random.default_rng(seed).choice(labels_n, len(types))[places_n]",
                "np.random.default_rng(seed).choice(labels_n, len(tokens_n))",
            ),
            "labels_are_uniform": (
                ".choice(labels_n, len(types))",
                ".choice(np.unique(labels_n), len(types))",
            ),
            "the_token_after": (
                "batch.tokens_bt[:, :-1], ((0, 0), (1, 0))",
                "batch.tokens_bt[:, 1:], ((0, 0), (0, 1))",
            ),
            "capitals_are_letters": ("(str.isupper, str.isalpha", "(str.isalpha, str.isupper"),
            "one_label_is_enough": ("if len(common) < 2:", "if False:"),
        },
    ),
    "transformer/interpret/instruments/sparse_autoencoder.py": (
        "tests/interpret/test_sparse_autoencoder.py",
        {
            "all_are_active": ("jnp.where(all_mf >= least_m1, all_mf, 0)", "all_mf"),
            "negative_features": ("jax.nn.relu((x_md", "((x_md"),
            "long_directions": (
                "decoder_fd / jnp.linalg.norm(decoder_fd, axis=1, keepdims=True)}, state",
                "decoder_fd}, state",
            ),
            "the_scale_is_lost": (
                'sae[name] * scale for name in ("bias", "threshold")',
                'sae[name] * 1 for name in ("bias", "threshold")',
            ),
            "several_sites_are_one": ("if pattern and len(paths) > 1:", "if False:"),
            "losses_without_targets": ("if not (weight := ", "if None is (weight := "),
            "edits_are_ignored": ("with Interventions(*edits):", "with Interventions():"),
            "recovered_of_the_loss": ("(zero - ours) / (zero - whole)", "(ours - whole) / (zero - whole)"),
        },
    ),
    "commands/support/inspected.py": (
        "tests/commands/test_inspect.py",
        {
            "encoders_too": ("INSTRUMENTS[kind].decoder and not", "False and not"),
            "texts_of_any_length": ("> (most := experiment.config.model.max_length)", "> (most := 10**9)"),
            "batches_of_all_data": ("flags.batches or BATCHES", "None"),
            "types_are_one": ("types_t[None])", "0 * types_t[None])"),
            "no_class_token": ('int(c.pooling == "cls"), 0', "0, 0"),
            "no_start": ("tokens = [tokenizer.bos_id, *tokenizer", "tokens = [*tokenizer"),
        },
    ),
    "commands/inspect.py": (
        "tests/commands/test_inspect.py",
        {
            "needed_flags_are_optional": ("if value is None and name in instrument.needs:", "if False:"),
            "flags_that_are_not_read": ("name not in instrument.needs + instrument.may", "False"),
            "no_batches": ("count < 1", "count < -9"),
            "any_site": ("flags.site not in instrument.sites", "False"),
        },
    ),
}
