"""Mutations of `transformer/interop`: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/interop/tensors.py": (
        "tests/interop/test_tensors.py",
        {
            "header_as_long_as_it_says": (
                "if not 2 <= length <= min(size - 8, LONGEST_HEADER):",
                "if False:",
            ),
            "beyond_the_file": ("offsets[0] <= offsets[1] <= room", "offsets[0] <= offsets[1]"),
            "overlapping": ("if tensor.offset != end:", "if tensor.offset > end:"),
            "with_gaps": ("if tensor.offset != end:", "if tensor.offset < end:"),
            "file_of_any_name": ('re.fullmatch(r"[\\w.-]+\\.safetensors", file)', "file"),
            "index_not_compared": ("if files.get(name) != file:", "if False:"),
            "file_never_full": ("+ output.nbytes > most", "+ output.nbytes < 0"),
        },
    ),
    "transformer/interop/adapters/low_rank.py": (
        "tests/interop/test_low_rank.py",
        {
            "inputs_always_last": ("(change if inputs_axis(place) else change.T)", "change"),
            "parts_of_equal_rows": ("np.cumsum(rows)[:-1] if rows else parts", "parts"),
            "rows_as_they_alternate": ("[place.by_path(low.b) for", "[low.b for"),
            "scale_forgotten": ("(self.b @ self.a) * np.float32(self.scale)", "(self.b @ self.a)"),
            "parts_share_an_a_of_their_own": ("all(pair and np.array_equal(pair[0], a) for", "all(pair for"),
            "zero_ranks_written": ("1 + np.flatnonzero(a.any(1) | b.any(0)).max()", "len(a) + 0"),
            "ranks_of_all_parts_for_each": ("return own if own and not rest and", "return own if () and"),
            "blocks_not_compared": ("not rest and inside == np.count_nonzero(b_lor)", "not rest"),
        },
    ),
    "transformer/interop/adapters/peft_config.py": (
        "tests/interop/test_peft.py::test_names_patterns_and_scales_are_those_of_peft "
        "tests/interop/test_peft.py::test_a_config_of_something_else_is_one_line "
        "tests/interop/test_peft.py::test_the_model_is_found_where_it_may_be",
        {
            "variants_read_as_plain": (
                '(None, False, 0, "", [], {}):',
                '(None, False, 0, "", [], {}, True):',
            ),
            "square_root_forgotten": ("Fraction(alpha / math.sqrt(rank))", "Fraction(alpha / rank)"),
            "names_anywhere": ('f".{module}".endswith(f".{name}")', "module.endswith(name)"),
            "expressions_of_a_beginning": (
                r'self._match(r"(?:{})\Z", value',
                r'self._match(r"(?:{})", value',
            ),
            "full_names_in_layers_only": (
                "if m in everywhere or self._in_layers(m)]",
                "if self._in_layers(m)]",
            ),
            "excluded_adapted": ('not self._names("exclude_modules", m) and', ""),
            "model_not_looked_for_beside": ("(own, name or own, beside)", "(own, name or own)"),
        },
    ),
    "transformer/interop/adapters/peft_folder.py": (
        "tests/interop/test_peft.py::test_tensors_of_something_else_are_one_line "
        "tests/interop/test_peft.py::test_a_config_of_something_else_is_one_line",
        {
            "any_shape": ("if tensor.shape != shape:", "if False:"),
            "any_value": ("if not np.isfinite(_floats(tensor)).all():", "if False:"),
            "further_tensors_left": ("        if stored:\n", "        if False:\n"),
        },
    ),
    "transformer/interop/folders/other_folders.py": (
        "tests/interop/test_peft.py::test_folders_of_other_programs_are_named",
        {"one_file_is_enough": ("if all(any(folder.glob", "if any(any(folder.glob")},
    ),
    "workdir/peft_hub.py": (
        "tests/interop/test_peft.py::test_layers_without_an_adapter_stay_without_one "
        "tests/interop/test_peft.py::test_what_peft_writes_is_read_and_written_again",
        {
            "smallest_rank": ("max(len(low.a) for low", "min(len(low.a) for low"),
            "merged_twice": ("        if keep:\n", "        if True:\n"),
            "layers_of_the_default": ("if chosen != {name for", "if () and chosen != {name for"),
        },
    ),
    "commands/exporters/peft_adapter.py": (
        "tests/interop/test_peft.py::test_an_adapter_of_another_model_is_not_written "
        "tests/interop/test_peft.py::test_modules_are_named_by_their_last_part_only_where_it_names_no_others "
        "tests/interop/test_peft.py::test_a_trained_head_is_stored_whole "
        "tests/interop/test_peft.py::test_peft_computes_with_what_was_trained_here "
        "tests/interop/test_peft.py::test_layers_without_an_adapter_stay_without_one",
        {
            "any_base": ("if place.index or path.endswith", "if () and path.endswith"),
            "heads_not_stored": ("saved |= {item: module", "{item: module"),
            "one_alpha_for_all_ranks": ("{module: alphas[r] for module", "{module: alphas[rank] for module"),
            "names_of_more_layers": ("return sorted(last if same else adapted)", "return sorted(last)"),
        },
    ),
    "transformer/interop/json_files.py": (
        "tests/interop/test_tensors.py tests/interop/test_import.py::test_one_value_is_a_list_of_it",
        {
            "one_value_lost": ("[] if value is None else [value]", "[]"),
            "names_twice": ("if len(value) < len(pairs):", "if False:"),
            "any_number": ('raise ValueError(f"{text} is not a number")', "return 0.0"),
        },
    ),
    "transformer/interop/generation_config.py": (
        "tests/interop/families/test_bart.py::test_summaries_begin_as_there_are_trained_on_and_go_back "
        "tests/interop/families/test_marian.py::test_generation_config_says_what_is_written "
        "tests/interop/test_import.py::test_how_a_model_draws_tokens_is_that_of_its_folder",
        {
            "start_token_not_counted": ("most = whole - 1", "most = whole"),
            "any_sequence_is_a_token": ("if len(ids) == 1)", "if ids)"),
            "first_token_not_written": ("if c.first else {}", "if () else {}"),
            "start_token_not_written": ("c.max_new_tokens + 1", "c.max_new_tokens"),
            "always_drawn": ('if values.get("do_sample"):', "if values:"),
        },
    ),
    "transformer/interop/hub_folder.py": (
        "tests/interop/test_config_keys.py::test_labels_that_share_a_name_are_told_apart_by_their_numbers "
        "tests/interop/test_import.py::test_an_import_says_once_which_keys_it_ignores "
        "tests/interop/test_import.py::test_a_model_with_parts_that_no_family_has_is_not_exported "
        "tests/interop/test_encoder_runs.py::test_what_is_no_choice_between_classes_is_refused "
        "tests/interop/families/test_gpt2.py::test_copies "
        "tests/interop/test_sentence_encoders.py::test_beside_modules_the_encoder_alone_is_read "
        "tests/interop/test_sentence_encoders.py::test_vectors_are_those_of_sentence_transformers_and_go_back",
        {
            "exported_with_no_head": ("(family.alone,) if family.heads else (", "("),
            "class_in_the_config_beside_modules": ("if encoders and (self", "if () and (self"),
            "heads_beside_modules_refused": ("if self.family.heads and self.family.prefix:", "if False:"),
            "parts_of_heads_not_left_out": (
                "        return self._of_head(rule.paths[0]) and rule.paths[0] not in shapes",
                "        return False",
            ),
            "known_keys_left_out": ("if name in self.family.known:", "if False:"),
            "one_name_for_two_classes": ("if counts[name] > 1 else", "if False else"),
            "silent_about_keys": ('{"ignored": map(shown_key, self.ignored), ', "{"),
            "any_copies": ("if copy in self.tensors and not", "if copy in () and not"),
            "regression_is_a_choice": ("if len(labels) == 1:", "if False:"),
            "several_labels_are_a_choice": ("if problem != SINGLE:", "if False:"),
            "farthest_family_named": ("closest, why = min(refused,", "closest, why = max(refused,"),
            "family_asked_for_not_named": (
                'f"{name} cannot" if name else',
                'f"{name} cannot" if not name else',
            ),
        },
    ),
    "transformer/interop/sentence_modules.py": (
        "tests/interop/test_sentence_encoders.py",
        {
            "normalised_always": ('"normalize": len(kinds) == 3', '"normalize": True'),
            "any_module": (
                'if kinds not in (["Transformer", "Pooling"], [',
                'if kinds[:2] not in (["Transformer", "Pooling"], [',
            ),
            "length_of_the_table": ("(size for size in limits if", "(size for size in limits if False and"),
            "folder_of_any_name": ("Path(name).name != name", "not name"),
            "first_flag": ("old[0] if len(old) == 1 else old", "old[0] if old else old"),
            "prompts_left_out": ('if (name := prompts.get("default_prompt_name"))', 'if (name := "")'),
            "never_normalised_there": ('["Normalize"] if model.normalize else []', "[]"),
            "mean_there": ("flag: mode == theirs", 'flag: mode == "mean"'),
            "case_ignored": ('if of_encoder.get("do_lower_case"):', "if False:"),
        },
    ),
    "transformer/interop/harmless.py": (
        "tests/interop/test_config_keys.py::test_keys_that_can_change_the_function_are_refused "
        "tests/interop/test_config_keys.py::test_what_is_off_or_of_another_program_is_harmless",
        {
            "off_is_always_harmless": (" and name not in ON)", ")"),
            "any_object_is_off": ("all(map(_is_off, value.values()))", "True"),
            "a_list_of_ids_is_no_id": ("_token(_ids?)?", "_token(_id)?"),
            "names_of_any_end": ("FORMS.fullmatch(name)", "FORMS.search(name)"),
        },
    ),
    "transformer/interop/tensor_rules.py": (
        "tests/interop/test_transfer.py tests/interop/test_import.py tests/interop/families/test_llama.py "
        "tests/interop/families/test_further_decoders.py",
        {
            "unknown_tensors_ignored": ("    if extra:", "    if extra and not extra:"),
            "all_from_the_first_row": (
                "start, place = sum(self.rows[:part])",
                "start, place = 0",
            ),
            "one_turn": ("rows.reshape(self.turns, -1,", "rows.reshape(1, -1,"),
            "nothing_reversed": ("if group == (self.reverse,))", "if group == ())"),
            "experts_before_layers": ("rule.paths, index, left", "rule.paths, index[::-1], left"),
        },
    ),
    "transformer/interop/tensor_parts.py": (
        "tests/interop/families/test_llama.py tests/interop/test_encoders.py",
        {
            "kernels_of_heads_by_dimension": ('"(h k) d -> d h k"', '"(k h) d -> d h k"'),
            "biases_of_heads_by_dimension": ('"(h k) -> h k"', '"(k h) -> h k"'),
            "joined_by_dimension": ('"d (h k) -> h k d"', '"d (k h) -> h k d"'),
            "several_are_one": ('tuple(f"{path}/{leaf}" for path in ours)', 'f"{ours[0]}/{leaf}"'),
        },
    ),
    "transformer/interop/transfer.py": (
        "tests/interop/test_transfer.py tests/interop/test_import.py",
        {
            "infinities": ("if not np.isfinite(x).all():", "if False:"),
            "every_layer_the_first": (
                "index: x.at[index]",
                "index: x.at[tuple(0 * n for n in index)]",
            ),
        },
    ),
    "transformer/interop/families/mixtral.py": (
        "tests/interop/families/test_llama.py",
        {
            "up_is_gate": (
                '{"gate": "w1", "up": "w3", "down": "w2"}',
                '{"gate": "w3", "up": "w1", "down": "w2"}',
            ),
            "probabilities_as_they_are": ('if not config.get("norm_topk_prob"):', "if False:"),
            "one_expert_read": ("2, least=2)", "2, least=1)"),
            "one_expert_written": ("if model.experts_per_token < 2:", "if False:"),
        },
    ),
    "transformer/interop/families/qwen3_next.py": (
        "tests/interop/families/test_qwen3_next.py",
        {
            "gate_before_query": ('for name in ("query", "gate"))', 'for name in ("gate", "query"))'),
            "taps_backwards": ('"reverse": "w", ', ""),
            "one_turn_of_all_heads": ('"turns": kind.num_key_heads or kind.num_heads', '"turns": 1'),
            "attention_comes_first": ("(i + 1) % every", "i % every"),
            "one_key_head_read": ("if keys == 1 < values:", "if False:"),
            "no_convolution_written": ("if kind.conv_width == 1:", "if False:"),
            "any_mixer_written": (".mixer) not in TYPES:", ".mixer) not in [*TYPES, mixer]:"),
            "layers_are_not_compared": ("    _check_same(model, keys)\n", ""),
            "heads_of_the_base": ('kind.mixer == "gated"), model)', "False), model)"),
            "further_predictions_are_refused": (r'r"mtp\..*", ', ""),
        },
    ),
    "transformer/interop/families/smollm3.py": (
        "tests/interop/families/test_llama.py",
        {
            "all_rotated": ('{"position": "none"}}', "{}}"),
            "layers_without_positions_come_first": ("(i + 1) % every != 0", "i % every != 0"),
            "windows_are_read_over": ('if config.get("use_sliding_window") or', "if False and"),
        },
    ),
    "transformer/interop/family.py": (
        "tests/interop/test_import.py tests/interop/families/test_llama.py",
        {
            "two_of_ours_as_one": ("if value != same:", "if False:"),
            "unknown_keys_ignored": ("if not is_harmless(name, config[name])]:", "if False]:"),
            "assumptions_not_checked": ("config[name] != expected:", "False:"),
        },
    ),
    "transformer/interop/attention_keys.py": (
        "tests/interop/families/test_llama.py tests/interop/families/test_gemma.py "
        "tests/interop/families/test_further_decoders.py",
        {
            "whole_heads_rotated": ('rope.pop("partial_rotary_factor", ', 'rope.pop("partial_rotary_", '),
            "yarn_of_a_part_read": ("if part != 1 and rope", "if False and rope"),
            "yarn_of_a_part_written": ("if model.position_fraction != 1 and", "if False and"),
            "no_scaling": ('if scaling == "none" or factor == 1:', "if True:"),
            "length_rounded": ("if not math.isclose(length, round(length)):", "if False:"),
            "one_layer_late": (
                "zip(names, names[m:], strict=False)",
                "zip(names, names[m + 1 :], strict=False)",
            ),
        },
    ),
    "transformer/interop/sentencepiece.py": (
        "tests/interop/test_sentencepiece.py tests/interop/test_marian_tokenizers.py",
        {
            "composed_never": ("== COMPOSED", "== None"),
            "composed_always": ("if steps and steps[0].normalize_str(DECOMPOSED) == COMPOSED", "if True"),
            "lowest_first": ("merges.append((-score,", "merges.append((score,"),
            "spaces_stay": ("if normal.get(4, 1):", "if False:"),
            "foreign_characters_unknown": ("if len(name) == 1 else", "if not name else"),
            "names_in_text": ('Split(Regex("|".join(names)), "isolated")', 'Split("\\0", "isolated")'),
            "prefix_always": (
                '[normalizers.Prepend(" ")] if normal.get(3, 1) else []',
                '[normalizers.Prepend(" ")]',
            ),
        },
    ),
    "transformer/interop/vocabulary.py": (
        "tests/interop/test_marian_tokenizers.py tests/interop/test_vocabulary.py",
        {
            "prompts_padded_behind": ('"right" if paired else "left"', '"right"'),
            "no_unknown_token": ('settings["unk_token"] = tokenizer.name(unknown)', ""),
            "settings_not_written": ("json.dumps(settings | tokenizer.extras,", "json.dumps(settings,"),
            "cut_as_qwen_does": ('model_type in ("", REBUILT)', 'model_type in ("",)'),
            "targets_as_sources": (
                "read_sentencepiece(folder / SIDES[1],",
                "read_sentencepiece(folder / SIDES[0],",
            ),
            "any_ids": ("or {*ids.values()} != {*range(len(ids))}", ""),
        },
    ),
    "transformer/data/pairs/text_pairs.py": (
        "tests/interop/test_marian_tokenizers.py tests/interop/families/test_bart.py",
        {
            "targets_as_sources": (
                "self.tokenizer, self.tokenizer.targets",
                "self.tokenizer, self.tokenizer",
            ),
            "empty_texts_begin_too": ("np.diff(cache.offsets) > 2", "np.diff(cache.offsets) > 0"),
            "sources_begin_as_they_are": ("[*self.first_tokens, *self.tokenizer", "[*self.tokenizer"),
        },
    ),
    "transformer/models/transforms/lora.py": (
        "tests/interop/test_import.py",
        {"merged_without_alpha": ("(config.lora_alpha / config.lora_rank)", "1.0")},
    ),
    "transformer/layers/attention/positions/rope.py": (
        "tests/interop/families/test_llama.py tests/interop/families/test_further_decoders.py",
        {
            "llama3_kept_from_two": ("- 1) / (4 - 1), 0, 1)", "- 1) / (2 - 1), 0, 1)"),
            "exact_is_whole": ("functools.partial(yarn, whole=False)", "yarn"),
        },
    ),
    "transformer/layers/attention/attention.py": (
        "tests/interop/families/test_llama.py",
        {"no_bias_of_qkv": ("use_bias=self.use_bias or self.qkv_bias", "use_bias=self.use_bias")},
    ),
    "transformer/interop/families/arcee.py": (
        "tests/interop/families/test_llama.py",
        {
            "tanh_for_exact": ('"gelu_pytorch_tanh": "gelu"', '"gelu_pytorch_tanh": "gelu_exact"'),
            "squared_by_default": ('"hidden_act", "relu2", PLAIN', '"hidden_act", "gelu", PLAIN'),
        },
    ),
    "transformer/interop/families/encoders/bert.py": (
        "tests/interop/test_encoders.py",
        {
            "next_sentence_the_other_way": (
                '"cls.seq_relationship.weight", "c d -> d c", reverse="c"',
                '"cls.seq_relationship.weight", "c d -> d c"',
            ),
            "gamma_not_known": ('(r"LayerNorm\\.gamma$", "LayerNorm.weight"), ', ""),
            "relative_positions_are_read": ('    "position_embedding_type": "absolute",\n', ""),
        },
    ),
    "transformer/interop/families/gpt_neox.py": (
        "tests/interop/families/test_further_decoders.py",
        {
            "parts_before_heads": ("in_turn=True, turns=model.num_heads)", "in_turn=True)"),
            "one_norm_for_both": (
                'Key("parallel_norms", "use_parallel_residual", True)',
                'Key("parallel_norms", "none", False)',
            ),
            "newer_name_of_the_output": ('    renamed=((r"^lm_head\\.", "embed_out."),),\n', ""),
        },
    ),
    "transformer/interop/families/olmo2.py": (
        "tests/interop/families/test_further_decoders.py",
        {
            "each_head_alone": ('"qk_norm_joint": True', '"qk_norm_joint": False'),
            "norms_of_inputs": ('{"norm_placement": "output", ', '{"norm_placement": "pre", '),
            "another_epsilon_of_heads": (
                'Key("qk_norm_epsilon", "rms_norm_eps", 1e-5)',
                'Key("qk_norm_epsilon", "eps", 1e-5)',
            ),
        },
    ),
    "transformer/interop/families/bart.py": (
        "tests/interop/families/test_bart.py",
        {
            "stacks_exchanged": (
                '(("source_", "encoder"), ("", "decoder"))',
                '(("", "encoder"), ("source_", "decoder"))',
            ),
            "positions_from_the_start": ("OFFSET = 2", "OFFSET = 0"),
            "any_embeddings": ('        "normalize_embedding": True,\n', ""),
        },
    ),
    "transformer/models/encoder_decoder.py": (
        "tests/interop/families/test_bart.py",
        {
            "sources_as_they_are": (
                "self.source_embedding_norm(x_bsd) if c.embedding_norm else x_bsd",
                "x_bsd",
            ),
        },
    ),
    "transformer/interop/families/phi3.py": (
        "tests/interop/families/test_further_decoders.py",
        {
            "any_scaling": ('if kind != "default":', "if False:"),
            "gate_for_up": ('"(c f) d -> c d f"', '"(f c) d -> c d f"'),
            "whole_heads_rotated": ('"position_fraction": fraction', '"position_fraction": 1.0'),
            "no_windows": ("if window is None else", "if True else"),
            "base_of_others": ('positive_number(rope, "rope_theta", ', 'positive_number(rope, "theta", '),
        },
    ),
    "transformer/interop/families/gpt_oss.py": (
        "tests/interop/families/test_further_decoders.py",
        {
            "gate_before_up": ('"e d (f c) -> c e d f"', '"e d (c f) -> c e d f"'),
            "biases_of_gates_before_ups": ('"e (f c) -> c e f"', '"e (c f) -> c e f"'),
            "few_bits_are_read": (
                'if isinstance(kind := config.get("quantization_config"), dict):',
                "if False:",
            ),
            "full_layers_first": ("if i % 2 else", "if not i % 2 else"),
            "no_sinks": ('"sinks": True, ', ""),
            "one_expert_written": ("if model.experts_per_token < 2:", "if False:"),
        },
    ),
    "transformer/interop/families/encoders/distilbert.py": (
        "tests/interop/test_encoders.py",
        {
            "norms_exchanged": (
                'attention_norm", f"{theirs}.sa_layer_norm',
                'attention_norm", f"{theirs}.output_layer_norm',
            ),
            "pooler_of_bert": ('"pooler": "relu"', '"pooler": "tanh"'),
            "epsilon_of_others": ('"norm_epsilon": 1e-12, ', ""),
            "layers_exchanged": ('"pooler/dense", "pre_classifier"', '"pooler/dense", "classifier"'),
        },
    ),
    "transformer/interop/families/encoders/mpnet.py": (
        "tests/interop/test_encoders.py",
        {
            "tables_of_each_layer": ('"share_position": True', '"share_position": False'),
            "positions_from_the_start": ("OFFSET = 2", "OFFSET = 0"),
            "distances_by_head": ('relative, "b h -> 1 b h"', 'relative, "h b -> 1 b h"'),
            "head_of_the_feed_forwards": ('{"head_activation": "gelu_exact"}', '{"head_activation": "relu"}'),
        },
    ),
    "transformer/layers/attention/positions/learned_t5.py": (
        "tests/interop/test_encoders.py",
        {"distances_alone": ("(T5, Learned)", "(T5)"), "places_alone": ("(T5, Learned)", "(Learned)")},
    ),
    "transformer/interop/folders/text_part.py": (
        "tests/interop/test_text_part.py",
        {
            "newer_names_unknown": ('    (r"^model\\.language_model\\.", "model."),', "    "),
            "head_beside_it_unknown": ('    (r"^lm_head\\.", "lm_head."),\n', ""),
            "any_text_model": ('text.get("model_type") not in names', "False"),
        },
    ),
    "transformer/interop/families/encoders/roberta.py": (
        "tests/interop/test_encoders.py",
        {
            "spans_of_another": ('functools.partial(span, prefix="roberta")', "span"),
            "positions_from_the_start": (
                'ForQuestionAnswering",\n    read=functools.partial(read, offset=True)',
                'ForQuestionAnswering",\n    read=read',
            ),
        },
    ),
    "transformer/interop/families/encoders/modernbert.py": (
        "tests/interop/test_encoders.py",
        {
            "any_layer_without_norm": ("!= [i > 0 for i in range(len(kinds))]", "== []"),
            "layers_differ_in_more": ('*OF_LAYERS, "layers", "layer_kinds")', '*OF_LAYERS, "qk_norm")'),
        },
    ),
    "transformer/interop/families/encoders/vit.py": (
        "tests/interop/test_encoders.py",
        {
            "channels_last": ("d c i j -> (i j c) d", "d c i j -> (c i j) d"),
            "norms_exchanged": ("layernorm_before", "layernorm_after_"),
            "without_the_factor": ('{"pixel_mean": mean / factor', '{"pixel_mean": mean'),
        },
    ),
    "transformer/interop/wordpiece.py": (
        "tests/interop/test_encoder_runs.py",
        {
            "always_lowercase": ('_flag(names, "do_lower_case", True)', "True"),
            "bert_s_around_texts_of_mpnet": ("if {*MPNET} <= {*ids}:", "if False:"),
            "one_type": ("$B:1 {sep}:1", "$B {sep}"),
            "types_not_named": (
                '*(["token_type_ids"] if types else [])',
                '*(["token_type_ids"] if not types else [])',
            ),
            "mask_without_its_space": ("lstrip=name in takes", "lstrip=False"),
            "special_tokens_left_out": ("range(size, special.vocab_size)", "range(size, size)"),
        },
    ),
    "transformer/data/tokenization/special_tokens.py": (
        "tests/interop/test_encoder_runs.py",
        {
            "roberta_s_are_unknown": ("has_bert or None in roberta", "True"),
            "bert_s_wherever_they_are": (" and first != [NAMES[1][0]]", ""),
        },
    ),
}
