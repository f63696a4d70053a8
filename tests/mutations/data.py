"""Mutations of `transformer/data`: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/data/encoders/replaced_text.py": (
        "tests/experiments/test_electra.py",
        {
            "some_are_kept": ("tokens_bt[rows, masked[", "tokens_bt[rows[:1], masked["),
            "draws_of_the_masks": ("[self.seed, place, DRAWN]", "[self.seed, 0, DRAWN]"),
            "padding_is_real": ('(batch["segments"] > 0).astype', '(batch["segments"] >= 0).astype'),
            "after_masking": ('"original": batch["tokens"]', '"original": masked["tokens"]'),
        },
    ),
    "transformer/data/tokenization/special_tokens.py": (
        "tests/data/tokenization/test_masks_in_texts.py",
        {
            "one_mask_each": ("[mask] * int(mark[1] or 1)", "[mask]"),
            "any_number": ("([1-9]\\d{0,3})", "(\\d{1,5})"),
            "the_space_of_the_word": ('before.removesuffix(" ") if spaced else before', "before"),
            "what_cannot_be_read_is_text": ('if wrong else ""', 'if False else ""'),
        },
    ),
    "transformer/data/text/cutting.py": (
        "tests/data/text/test_cutting.py",
        {
            "segments_go_on": ("(segments_bt - segments_bt[:, :1] + 1)", "segments_bt"),
            "positions_go_on": (
                "np.where(continued_bt, positions_bt - positions_bt[:, :1]",
                "np.where(False, 0",
            ),
            "all_continue": ("segments_bt == segments_bt[:, :1]", "segments_bt > -1"),
            "padding_is_a_segment": (" * there_bt", ""),
        },
    ),
    "transformer/data/text/packed_text.py": (
        "tests/data/test_packing.py tests/data/sources/test_stream_rows.py tests/data/test_text.py "
        "tests/evaluation/test_documents.py",
        {
            "next_document_predicted": (
                "counted_bt = inputs_bt & (document_bt[:, 1:] == document_bt[:, :-1])",
                "counted_bt = inputs_bt",
            ),
            "targets_not_shifted": ("tokens_bt[:, 1:] * inputs_bt", "tokens_bt[:, :-1] * inputs_bt"),
            "positions_of_the_row": (
                "(place_bt[:, :-1] - start_bt) * inputs_bt",
                "(place_bt[:, :-1] - first_b1) * inputs_bt",
            ),
            "rows_ahead_count": ("own = (place >= self.ahead)", "own = (place >= 0)"),
            "streams_interleaved": (
                "row = stream * self._each + place - self.ahead",
                "row = place * self._streams + stream",
            ),
            "padding_is_of_a_document": ("numbers if row >= 0 else numbers[:0]", "numbers"),
            "the_next_document": (
                'searchsorted(self.cache.offsets, ends_b2, side="right") - 1',
                'searchsorted(self.cache.offsets, ends_b2, side="right")',
            ),
            "bytes_of_the_input": (
                "self.cache.num_bytes[place_bt[:, 1:]]",
                "self.cache.num_bytes[place_bt[:, :-1]]",
            ),
        },
    ),
    "transformer/data/pairs/pair_packing.py": (
        "tests/data/pairs/test_pair_packing.py",
        {
            "targets_not_shifted": ("self.targets.tokens[second_m + 1]", "self.targets.tokens[second_m]"),
            "source_in_the_loss": ("((step_m >= source_m) | ", "((step_m >= 0) | "),
            "pairs_alike": (
                '"segments": np.repeat(segment_n, target_n)',
                '"segments": np.ones_like(second_m)',
            ),
            "every_text_at_the_start": (
                "np.repeat(row_n * shape[1] + start_n, length_n)",
                "np.repeat(row_n * shape[1], length_n)",
            ),
            "part_without_an_end": (
                "first_m[np.cumsum(source_n) - 1] = self.sources.offsets[pair_n + 1] - 1",
                "first_m[np.cumsum(source_n) - 1] += 0",
            ),
            "joined_part_without_an_end": (
                "begin_m + here_m, end_m - 1)",
                "begin_m + here_m, begin_m + source_m)",
            ),
            "row_before": ("before_nc - before_nc[first_n]", "before_nc"),
            "part_learned_to_its_end": ("(whole_m | (step_m != source_m - 1))", "True"),
        },
    ),
    "transformer/data/chat/chat.py": (
        "tests/data/chat/test_chat.py tests/data/sources/test_places.py",
        {
            "targets_not_shifted": ("= tokens[:-1], tokens[1:]", "= tokens[:-1], tokens[:-1]"),
            "weights_of_inputs": ("answers[first + 1 : first + n + 1]", "answers[first : first + n]"),
            "one_segment": ("segment, np.arange(n)", "1, np.arange(n)"),
        },
    ),
    "transformer/data/encoders/question_answering.py": (
        "tests/data/encoders/test_question_answering.py tests/data/sources/test_places.py",
        {
            "place_among_the_kept": (
                "self.cache.numbers[self._windows_w5[index, 0]]",
                "self._windows_w5[index, 0]",
            ),
            "marks_are_cut_off": ('.startswith("M")', '.startswith("Q")'),
        },
    ),
    "transformer/data/packed_corpus.py": (
        "tests/data/test_packed_corpus.py",
        {
            "packing_is_not_told": ("super().tallies(*splits) | {", "super().tallies(*splits) or {"),
            "known_sources_tell_nothing": (
                'tally_lines(self.tallies("train", "validation")) if self.apart',
                "[] if self.apart",
            ),
        },
    ),
    "transformer/data/encoders/next_sentence.py": (
        "tests/data/encoders/test_next_sentence.py",
        {"single_words_uncounted": ("len(possible) - n", "0")},
    ),
    "transformer/data/encoders/question_cache.py": (
        "tests/data/sources/test_work.py",
        {
            "places_of_all_questions": (
                "functools.partial(source.place, index)",
                "lambda said=source.place(index): said",
            ),
        },
    ),
    "transformer/data/chat/dialogues.py": (
        "tests/data/chat/test_chat.py tests/data/chat/test_message_fields.py "
        "tests/data/sources/test_places.py",
        {
            "texts_are_unwrapped": ('value = {"content": value}', "value = parse_json(value)"),
            "answers_of_the_user": (
                'if last["role"] != "assistant":\n            raise',
                "if False:\n            raise",
            ),
            "any_prompt_of_an_answer": ("earlier != before or", "False or"),
            "a_conversation_that_asks": ('or last["role"] != "assistant")', "or False)"),
            "tools_are_dropped": ("[with_tools(messages, first.get(TOOLS)) for", "[messages for"),
            "calls_of_no_record": ("CALLS: last.get(CALLS, [])", "CALLS: []"),
        },
    ),
    "transformer/data/chat/chat_tokens.py": (
        "tests/data/chat/test_chat.py tests/data/chat/test_message_fields.py "
        "tests/data/sources/test_places.py",
        {
            "all_tokens_learned": ("[is_answer and i < stop for", "[i < stop for"),
            "the_end_not_learned": ("stop = len(new) - new[::-1]", "stop = len(new) - 1 - new[::-1]"),
            "any_answer_of_a_pair": ("marks_m[: np.flatnonzero(~marks_m)[-1]] = False", "pass"),
            "pieces_alone": ("if joined[: len(head)] == head else", "if False else"),
            "special_tokens_from_text": ("if any(name in text for text in texts):", "if False:"),
            "left_out_in_silence": ("        self.template.check_written(messages)\n", ""),
            "examples_are_unchecked": (
                'Raises as `encode`."""\n        messages = self._checked(messages)\n        try:',
                'Raises as `encode`."""\n        try:',
            ),
            "systems_are_alike": ('*(["joins system"] if joins_system else [])', "*[]"),
            "never_joined": ("if self._joins_system else messages", "if False else messages"),
            "always_joined": ("if self._joins_system else messages", "if True else messages"),
            "a_remedy_for_all": (
                "                self.template.render(joined_system(messages))\n",
                "",
            ),
            "no_remedy": ("            self._check_system(messages)\n", "            pass\n"),
            "answers_without_weight_too": (
                'if m["role"] == "assistant" and m.get("weight") != 0]',
                'if m["role"] == "assistant"]',
            ),
            "without_what_is_before": (
                "self._encode(messages[: i + 1], last",
                "self._encode(messages[i:], last",
            ),
            "one_example": ("last_only=True) for i in learned)", "last_only=True) for i in learned[-1:])"),
            "one_end": ("dict.fromkeys([self.end_id, *calls[-1:]])", "dict.fromkeys([self.end_id])"),
            "ends_at_any_special_token": ("*calls[-1:]", "*calls"),
        },
    ),
    "transformer/data/chat/chat_template.py": (
        "tests/data/chat/test_chat.py tests/data/sources/test_places.py "
        "tests/data/chat/test_template_process.py",
        {
            "plain_in_a_process": ("additions if self.source == PLAIN else", "additions if False else"),
            "file_unnamed": ("for file in files if file", "for file in () if file"),
            "every_answer_is_learned": ('messages[count - 1].get("weight") != 0', "True"),
            "train_is_ignored": (
                '0 in (message.get("weight"), message.get("train"))',
                'message.get("weight") == 0',
            ),
            "keys_are_dropped": (
                "for key in UNREAD if message.get(key)",
                "for key in () if message.get(key)",
            ),
        },
    ),
    "transformer/data/chat/message_fields.py": (
        "tests/data/chat/test_message_fields.py",
        {
            "calls_of_anyone": ('and message["role"] != "assistant":', "and False:"),
            "tools_anywhere": ('if not where.endswith(" 1"):', "if False:"),
            "any_calls": ("all(map(_is_call, value))", "True"),
            "unnamed_calls": (' and bool(function["name"])', ""),
            "any_reasoning": ("if key not in (CALLS, TOOLS) and not isinstance(value, str):", "if False:"),
            "half_characters": ("            check_text(text, lambda: where)\n", "            pass\n"),
            "tools_are_any_list": ("all(isinstance(tool, Mapping) for tool in value)", "True"),
            "keys_of_objects": ("            yield from texts_in(key, where)\n", ""),
            "the_first_call": ("for k in range(len(calls)):", "for k in range(len(calls[:1])):"),
            "results_may_be_left_out": ('if message["role"] == "tool":', "if False:"),
            "tools_may_be_left_out": ("if messages and TOOLS in messages[0]:", "if False:"),
            "reasoning_may_be_left_out": (
                "for key in REASONING if key in message]\n        calls",
                "for key in ()]\n        calls",
            ),
            "all_that_follows": (
                "[*before, message], [*before, altered]",
                "[*messages], [*before, altered, *messages[i + 1 :]]",
            ),
            "the_system_is_dropped": ("{system['content'].strip()}\\n\\n{user", "{user"),
            "tools_of_the_system_are_dropped": ("{**system, **user, ", "{**user, "),
            "calls_are_no_text": ("for key in (CALLS, TOOLS) if key in message]", "for key in ()]"),
        },
    ),
    "transformer/data/chat/sequences.py": (
        "tests/data/chat/test_chat.py",
        {
            "records_are_examples": ("records.append(record)", "records.append(len(records))"),
            "no_place": ('raise UserError(f"{source.place(index)}: {error}") from None', "raise"),
            "all_answers": ("tokens.examples(messages, source.last_only)", "tokens.examples(messages)"),
            "the_first_token": ("int(answers_m.argmax())", "0"),
        },
    ),
    "transformer/data/chat/template_process.py": (
        "tests/data/chat/test_template_process.py",
        {
            "any_time": ("signal.ITIMER_PROF, SECONDS)", "signal.ITIMER_PROF, 3 * SECONDS)"),
            "any_memory": ("    _limit_memory()\n    try:", "    try:"),
            "any_length": ("messages, views, CHARACTERS, begin)", "messages, views, math.inf, begin)"),
            "any_message": ("str(message)[:MESSAGE]", "str(message)"),
            "surrogates": ("text.encode()  #", "text  #"),
            "some_errors": ("except Exception as error:", "except jinja2.TemplateError as error:"),
            "replies_at_once": ("with self._lock:", "if True:"),
            "reply_to_another": (
                "                self.stop()\n                raise",
                "                raise",
            ),
            "signals_of_a_job": ("signal.signal(number, signal.SIG_IGN)", "pass"),
            "ended_by_others": ("self._process.poll() is not None", "False"),
            "shared_after_a_fork": ("os.register_at_fork(after_in_child=", "(lambda **_: None)(none="),
        },
    ),
    "transformer/data/overlap.py": (
        "tests/data/test_overlap.py",
        {
            "blank_records_are_alike": (" & (validation_n != BLANK)", ""),
            "white_space_differs": ("text := piece.strip().encode(", "text := piece.encode("),
            "none_is_allowed": ("> data.config.overlap * len(shared_n):", "> 0:"),
            "all_are_allowed": ("> data.config.overlap * len(shared_n):", "> len(shared_n):"),
            "first_of_all": ("place(int(shared_n.argmax()))", "place(0)"),
        },
    ),
    "transformer/data/encoders/labelled_text.py": (
        "tests/data/test_overlap.py",
        {"split_by_both_texts": ('{"reads": [self.config.text_field]} | options', "options")},
    ),
    "transformer/data/chat/preferences.py": (
        "tests/data/chat/test_chat.py tests/data/sources/test_places.py",
        {"reference_of_others": ("self._reference_n2[numbers_bk[there_bk]]", "self._reference_n2[0]")},
    ),
    "transformer/data/loader.py": (
        "tests/data/test_loader.py",
        {
            "epochs_alike": ("np.random.SeedSequence([seed, epoch])", "np.random.SeedSequence([seed, 0])"),
            "every_process_the_first_rows": (
                "places = step * self.batch_size + needed",
                "places = step * self.batch_size + np.arange(len(needed))",
            ),
            "rows_twice": ("if epoch and not self.repeat:", "if epoch > 1 and not self.repeat:"),
        },
    ),
    "transformer/data/text/interleaving.py": (
        "tests/data/text/test_mixture.py",
        {
            "deadline_ignored": ("(-(-(had[i] + 1) * period // part), i)", "(had[i], i)"),
            "released_too_soon": ("if had[i] * period < (place + 1) * part", "if had[i] < part"),
            "source_reread_in_each_period": ("period * self.counts_k[sources] + ", ""),
            "order_by_the_source": ("np.arange(part)\n", "0\n"),
            "weights_nearly": ("ROUNDING = 1e-10", "ROUNDING = 1e-6"),
            "weightless_sources": ("errors_d[~counts_dk.all(axis=1)] = 1", "pass"),
        },
    ),
    "transformer/data/text/mixture.py": (
        "tests/data/text/test_mixture.py",
        {
            "every_process_the_first_rows": (
                "needed = np.arange(self.batch_size) if self.needed is None else self.needed",
                "needed = np.arange(self.batch_size if self.needed is None else len(self.needed))",
            ),
            "rows_of_the_mixture": ("_at(part, place_b[here])", "_at(part, here)"),
            "weights_of_the_others": (
                "weights = [*self.weights.values()]",
                "weights = [*self.weights.values()][::-1]",
            ),
            "order_as_given": ("dict(sorted(config.sources.items()))", "dict(config.sources.items())"),
            "parts_alike": ("part.only = source", "part.only = next(iter(self.weights))"),
            "start_of_the_first_part": ("start -= min(start, len(part))", "start = 0"),
            "row_of_padding": ("count <= length", "count < length"),
            "other_spelling_of_a_place": ("os.path.realpath(os.path.expanduser(place))", "place"),
            "contents_of_the_last": ('f"sources[{number}]" if', '"sources" if'),
        },
    ),
    "transformer/data/encoders/noised_text.py": (
        "tests/experiments/test_diffusion_lm.py",
        {
            "weights_of_masked_tokens": ("(masked_bt / share_b1)", "masked_bt"),
            "shares_by_chance_alone": ("places * GOLDEN", "places * 0.0"),
            "what_does_not_count_is_masked": ("< share_b1) & counted_bt", "< share_b1)"),
            "starts_are_read": ('batch["segments"] * counted_bt', 'batch["segments"]'),
            "masks_of_every_row_alike": ("default_rng([self.seed, place])", "default_rng(self.seed)"),
        },
    ),
    "transformer/data/encoders/masking.py": (
        "tests/data/encoders/test_masked_text.py",
        {
            "special_tokens_chosen": (
                '(batch["segments"] > 0) & ~special_bt)',
                'batch["segments"] > 0)',
            ),
            "masks_every_step_alike": ("default_rng([self.seed, places[i]])", "default_rng([self.seed, 0])"),
            "random_tokens_are_special": ("self.words.ordinary[anything]", "self.special_tokens.cls"),
            "places_out_of_order": ('        chosen["places"].sort(axis=1)\n', ""),
            "share_of_masks": ("MASKED, RANDOM = 0.8, 0.1", "MASKED, RANDOM = 0.9, 0.1"),
            "targets_of_nothing": (
                "np.where(guessed > 0, tokens_bt[here], 0)",
                "np.zeros_like(tokens_bt[here])",
            ),
        },
    ),
    "transformer/data/text/skip_grams.py": (
        "tests/data/text/test_skip_grams.py",
        {
            "noise_by_frequency": ("counts_v**0.75 / np.sum(counts_v**0.75)", "counts_v / np.sum(counts_v)"),
            "subsampling_without_root": ("np.minimum(1.0, np.sqrt(ratio_v))", "np.minimum(1.0, ratio_v)"),
            "reach_from_zero": ("1 + reach_bt * self._config.window", "reach_bt * self._config.window"),
        },
    ),
    "transformer/data/text/long_texts.py": (
        "tests/data/text/test_long_texts.py",
        {
            "head_of_a_third": ("head = -(-size // 4)", "head = -(-size // 3)"),
            "tail_from_the_middle": ("text[len(text) - size + head :]", "text[head:size]"),
            "last_tokens_unread": (
                "start = number * (len(text) - size) // max(count - 1, 1)",
                "start = number * (len(text) - size) // count",
            ),
            "stride_ignored": ("min(stride or size, size)", "size"),
            "shorter_text_first": ("max(room - lengths[1], -(-room // 2))", "room - 1"),
        },
    ),
    "transformer/data/encoders/encoder_packing.py": (
        "tests/data/text/test_long_texts.py tests/data/encoders/test_labelled_text.py",
        {
            "windows_weigh_one": ("1 / self.windows_n[text_bk]", "1"),
            "labels_of_windows": ("self.labels[index_bk]", "self.label_n[text_bk - 1]"),
            "always_the_first_window": ("int(index - self._first_n[number])", "0"),
        },
    ),
    "transformer/data/tokenization/tokenizer_kinds.py": (
        "tests/data/tokenization/test_tokenizers.py",
        {
            "accents_kept": ("normalizers.StripAccents(), ", ""),
            "letters_taken_apart": (", normalizers.NFC()]", "]"),
            "case_kept": ("[normalizers.Lowercase()] if lowercase", "[] if lowercase"),
            "learns_the_text_as_it_is": ("map(change.normalize_str, texts)", "texts"),
            "own_normalizer_lost": ("[change, *filter(None, [backend.normalizer])]", "[change]"),
        },
    ),
    "transformer/data/tokenization/tokenizer_formats.py": (
        "tests/data/test_formats.py",
        {
            "names_of_tiktoken": ('path.suffix == ".tiktoken"', "False"),
            "sentencepiece_is_not_known": ('head[:1] == b"\\n"', "False"),
        },
    ),
    "transformer/data/tokenization/tokenizers.py": (
        "tests/data/tokenization/test_tokenizers.py",
        {
            "dropout_is_kept": ("backend.model.dropout = None", "pass"),
            "closed_vocabularies_are_not_noticed": ("ClosedVocabulary(backend, name)", "backend"),
        },
    ),
    "transformer/data/tasks/recall.py": (
        "tests/data/test_tasks.py",
        {
            "keys_come_twice": ("rng.choice(half, n, replace=False)", "rng.choice(half, n)"),
            "values_are_keys_too": (
                "rng.integers(half, self.vocab_size, t)",
                "rng.integers(0, self.vocab_size, t)",
            ),
            "the_first_value": ("= keys_n, values_n", "= keys_n, values_n[0]"),
            "all_places_alike": ("** (power - 1.0)", "** 0.0"),
            "among_the_pairs": ("2 * (n + rng.choice", "2 * (n - 1 + rng.choice"),
            "padding_counts": ("= rows_b[i] >= 0", "= 1"),
            "a_row_of_pairs": ("length // 4):", "length // 2):"),
        },
    ),
    "transformer/data/tasks/selective_copying.py": (
        "tests/data/test_tasks.py",
        {
            "in_any_order": (
                "np.sort(rng.choice(before, self._symbols, replace=False))",
                "rng.choice(before, self._symbols, replace=False)",
            ),
            "marks_are_symbols": ("rng.integers(MARK + 1,", "rng.integers(MARK,"),
            "padding_counts": ("(rows_b >= 0)", "(rows_b >= -1)"),
        },
    ),
    "transformer/data/tasks/digit_addition.py": (
        "tests/data/test_tasks.py",
        {
            "carries_are_lost": (" + carry, 10)", ", 10)"),
            "the_end_is_not_asked": ("3 * count + 3] = rows_b", "3 * count + 2] = rows_b"),
            "trained_lengths_are_evaluated": ("(self._digits + 1, self._most)", "(1, self._most)"),
            "padding_counts": ("= rows_b[i] >= 0", "= 1"),
        },
    ),
    "transformer/data/tasks/word_problem.py": (
        "tests/data/test_tasks.py tests/test_algorithmic.py",
        {
            "products_in_another_order": (
                "number[elements[:, elements] @",
                "number[elements[:, elements].swapaxes(0, 1) @",
            ),
            "no_longer_rows": ("return self.length * self._factor", "return self.length"),
            "trained_lengths_are_answers": ('(0 if split == "train" else self.length)', "0"),
            "padding_counts": ("(rows_b >= 0)", "(rows_b >= -1)"),
            "begins_with_the_unit": ("targets_bt[:, 0] = tokens_bt[:, 0]", "targets_bt[:, 0] = 0"),
        },
    ),
    "transformer/data/cache/disk_cache.py": (
        "tests/faults/test_data_faults.py tests/faults/test_untrusted_files.py "
        "tests/data/cache/test_verify.py tests/data/cache/test_token_cache.py",
        {
            "cut_caches_are_read": (".st_size) != size:", ".st_size) < 0:"),
            "without_checksums_is_whole": ('return f"{Path(error.filename).name} is missing"', 'return ""'),
            "not_flushed": ("        os.fsync(file.fileno())", "        pass"),
            "unfinished_folders_of_all": ("if unfinished.name.startswith(own) or", "if True or"),
            "unfinished_folders_of_none": ("or _age(unfinished) > DAY:", "or False:"),
            "the_slower_host_fails": (
                "            if not is_made(path):\n                raise",
                "            raise",
            ),
            "any_folder_will_do": (
                "            if not is_made(path):\n                raise",
                "            pass",
            ),
            "any_cache_is_ours": (".startswith(MARK)", '.startswith("Signature")'),
        },
    ),
    "transformer/data/cache/verify.py": (
        "tests/data/cache/test_verify.py",
        {
            "content_is_not_compared": ("damage(path) or _changed(path)", "damage(path)"),
            "all_are_deleted": ("if problem := damage(path) or _changed(path):", "if problem := str(path):"),
            "earlier_checksums_are_compared": ("len(checksums[0]) == DIGITS and", ""),
        },
    ),
}
