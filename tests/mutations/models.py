"""Mutations of `transformer/models` and of the model in one file: file -> (tests, {name: edit})."""

EDITS = {
    "examples/train_lm.py": (
        "tests/test_examples.py",
        {
            "later_positions_seen": ("jnp.tril(", "jnp.triu("),
            "embedding_decayed": ('| {"embedding": False}', '| {"embedding": True}'),
            "first_step_without_a_rate": ("rate(count + 1)", "rate(count)"),
            "no_clipping": ("optax.clip_by_global_norm(c.clip_norm)", "optax.identity()"),
            "less_than_p": ("more_probable_v < p", "more_probable_v + probability_v < p"),
            "terms_of_full_scale": ("1 / f / sublayers", "1 / f"),
            "same_batch": ("default_rng((c.seed, step))", "default_rng(c.seed)"),
        },
    ),
    "transformer/models/transforms/reduced.py": (
        "tests/models/transforms/test_reduced.py",
        {
            "scale_of_inputs": ('kernel": (-3, -2),', 'kernel": (-3,),'),
            "one_row_of_the_table_for_all": ('table": (-1,)', 'table": (-2,)'),
            "float32_held": ("    del params\n", ""),
            "adapters_reduced": ('{end}$", path)', '{end[:-7]}", path)'),
            "scale_of_gates": ('bridge)/kernel": (-3,)', 'bridge)/kernel": (-2,)'),
            "heads_where_there_are_none": ("ndim >= -min(axes) and ", ""),
        },
    ),
    "transformer/models/recurrent.py": (
        "tests/models/test_recurrent_encoder_decoder.py "
        "tests/models/test_encoder_decoder.py::test_segments_of_one_side_alone_are_those_of_a_whole_other_side",
        {
            "segments_of_sources_ignored": ("if source_segments_bs is None:", "if True:"),
            "summary_of_the_start": ("return pick(h_bsd, ends_bs)", "return pick(h_bsd, ends_bs & False)"),
            "one_direction_twice": (
                "self.encoder_reverse[i](x_bsd, ends_bs, valid_bs)",
                "self.encoder[i](x_bsd, ends_bs, valid_bs)",
            ),
            "layers_begin_alike": ("begin_btnd[:, :, i]), train)", "begin_btnd[:, :, 0]), train)"),
            "other_pairs_seen": (
                "valid_bt[:, :, None] & (segments_bt[:, :, None] == source_segments_bs[:, None])",
                "valid_bt[:, :, None] & (source_segments_bs[:, None] > 0)",
            ),
            "states_not_reordered": ("jax.tree.map(lambda part: part[rows_b], cache.states)", "cache.states"),
            "no_tanh": ("return jnp.tanh(self.combine(", "return (self.combine("),
        },
    ),
    "transformer/models/classifier.py": (
        "tests/models/test_classifier.py tests/interop/test_encoders.py",
        {
            "rectified_is_squashed": ('"relu": jax.nn.relu}', '"relu": jnp.tanh}'),
            "cls_of_the_first_text": ("return x_td[starts_k]", "return x_td[starts_k * 0]"),
            "mean_with_padding": (
                "return (belongs_kt @ x_td.astype(jnp.float32) / counts_k1)",
                "return (belongs_kt @ x_td.astype(jnp.float32) / x_td.shape[0])",
            ),
            "empty_text_is_infinite": ("jnp.where(jnp.isfinite(found_kd), found_kd, 0)", "found_kd"),
            "pooler_with_cls_alone": ('return self.pooler if self.pooler != "auto" else ', "return "),
            "no_pooler": ("return self.activation(linear(x_bkd))", "return linear(x_bkd)"),
        },
    ),
    "transformer/models/vision.py": (
        "tests/models/test_vision_transformer.py",
        {
            "columns_first": (".swapaxes(2, 3)\n", ".swapaxes(1, 2).swapaxes(2, 3)\n"),
            "mean_not_subtracted": ("- c.pixel_mean) / c.pixel_scale", "/ c.pixel_scale)"),
            "cls_last": ("[first_b1d, x_btd]", "[x_btd, first_b1d]"),
            "cls_is_lost": ("count = min(first, new_first)", "count = 0"),
            "nearest_patch": (
                '(new_side, new_side, width), "linear")',
                '(new_side, new_side, width), "nearest")',
            ),
            "patches_from_the_first_row": (
                "table_pd[first : first + side * side]",
                "table_pd[: side * side]",
            ),
        },
    ),
    "transformer/models/decoder_config.py": (
        "tests/models/test_function.py tests/workdir/test_same_function.py",
        {
            "harmless_epsilon": ('"base_layers", "depth_exponent"),', '"base_layers", "norm_epsilon"),'),
            "adapters_of_any_scale": ("if adapted else {})", "if False else {})"),
        },
    ),
    "transformer/models/transforms/layer_kinds.py": (
        "tests/models/test_function.py",
        {
            "rounded_lengths": ("int(length) if length == int(length) else length", "int(length)"),
            "no_lengths_of_kinds": ("{**keys, **of(config.kinds[name])}", "keys"),
        },
    ),
    "transformer/models/masked_lm.py": (
        "tests/models/test_masked_lm.py",
        {
            "no_output_bias": (
                "self.encoder.attend(x_bmd, part) + part(",
                "self.encoder.attend(x_bmd, part) + 0 * part(",
            ),
        },
    ),
    "transformer/models/encoder.py": (
        "tests/models/test_encoder.py tests/models/test_masked_lm.py tests/models/test_classifier.py",
        {
            "no_activation": ("norm(ACTIVATIONS[self.head_activation](linear(x)))", "norm(linear(x))"),
            "one_activation": ("ACTIVATIONS[self.head_activation]", 'ACTIVATIONS["gelu"]'),
            "always_a_bias": ("use_bias=self.head_bias", "use_bias=True"),
            "types_of_one_kind": ("None if self.config.token_type_bias else types_bt", "types_bt"),
            "no_shared_type": (
                "self.num_token_types > 1 or self.token_type_bias",
                "self.num_token_types > 1",
            ),
        },
    ),
    "transformer/layers/block.py": (
        "tests/models/test_encoder.py",
        {
            "norm_of_attention_always": (' and (self.attention_norm or name != "attention")', ""),
            "no_norm_at_all": ('self.attention_norm or name != "attention"', "self.attention_norm"),
        },
    ),
    "transformer/models/transforms/lora.py": (
        "tests/models/transforms/test_lora.py tests/workdir/test_same_function.py",
        {
            "alpha_ignored": ("self.alpha / self.rank", "1.0 / self.rank"),
            "up_not_zero": ("init_scale=0.0", "init_scale=1.0"),
            "adapters_replace": ("return y + up(down", "return up(down"),
        },
    ),
    "transformer/models/span.py": (
        "tests/models/test_span.py",
        {
            "all_segments_at_once": (
                "(segments_bt[:, None] == numbers_k1) &",
                "(segments_bt[:, None] > 0 * numbers_k1) &",
            )
        },
    ),
    "transformer/models/word_embedding.py": (
        "tests/models/test_word_embedding.py",
        {
            "one_table": (
                "u_bsd, u_bkd = self.context(tokens_bt), self.context(noise_bk)",
                "u_bsd, u_bkd = self.embedding(tokens_bt), self.context(noise_bk)",
            )
        },
    ),
    "transformer/models/transforms/value_embeddings.py": (
        "tests/models/transforms/test_value_embeddings.py",
        {
            "no_weight": ("scale.astype(x_bte.dtype) * x_bte", "x_bte"),
            "one_place_for_all": (
                "[*itertools.accumulate(g * k for g, k in self.shapes)][:-1]",
                "len(self.shapes)",
            ),
            "initially_nothing": ("nn.initializers.ones", "nn.initializers.zeros"),
            "widths_of_keys_heads": ("(widths[i][0], widths[i][2])", "(widths[0][0], widths[0][2])"),
            "not_added": ("jnp.where(layer == place, added_btgk, 0)", "jnp.zeros_like(added_btgk)"),
            "in_all_layers": ("jnp.where(layer == place, added_btgk, 0)", "added_btgk"),
            "from_the_end_alone": ("i + stack.num_layers if i < 0 else i", "i % stack.num_layers"),
            "twice": ("len({*places}) < len(places) or ", ""),
            "of_any_mixer": ("if type(stack.block(i).mixer) is not MultiHeadAttention]", "if False]"),
        },
    ),
}
