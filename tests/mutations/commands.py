"""Mutations of commands: file -> (tests, {name: (text, replacement)})."""

VERIFIED = "tests/commands/test_verification.py"

EDITS = {
    "commands/support/learned_tokens.py": (
        "tests/commands/test_learned_tokens.py",
        {
            "marks_of_inputs": ("marks = [False, *(weights", "marks = [*(weights"),
            "characters_in_parts": ("if next_one and not whole:", "if False:"),
            "special_tokens_unseen": ("if ids[stop - 1] in special:", "if False:"),
            "one_colour": ("COLOURS[i % 2]", "COLOURS[0]"),
            "any_targets": ("if not np.array_equal(tokens_n[1:], targets_n[:-1]):", "if False:"),
            "weights_of_pairs": ('batch.get("answers", batch.get("weights"))', 'batch.get("weights")'),
            "an_open_end": ('return text + (after if inside else "")', "return text"),
        },
    ),
    "commands/verification/float64.py": (
        VERIFIED,
        {
            "types_as_they_are_named": (
                """return np.dtype("float64") if floats else value""",
                "return value",
            ),
            "bits_of_float64": ("inputs[0].astype(eqn.invars[0].aval.dtype)", "inputs[0]"),
            "own_derivatives_are_trusted": ("if observes else self.fun(", "if True else self.fun("),
            "loops_forward": ('p["length"], p["reverse"])', 'p["length"])'),
            "loops_are_one_product": ('if eqn.primitive.name == "scan" else 1', "if False else 1"),
        },
    ),
    "commands/verification/plain_layers.py": (
        VERIFIED,
        {
            "scale_is_the_offset": ('(1 + _param(self, "offset"))', '_param(self, "offset")'),
            "layers_as_they_are": ('kind.__base__, "__call__", method', 'kind, "__call__", method'),
        },
    ),
    "commands/verification/rounding_errors.py": (
        VERIFIED,
        {
            "no_numbers_pass": ("return self.error <= self.bound", "return not self.error > self.bound"),
            "what_is_masked_counts": ("~(np.abs(there) > MASKED)", "np.isfinite(there)"),
            "biases_of_nothing": ("/ 10, whole / 1e4)", "/ 1e9, whole / 1e9)"),
            "sums_of_any_length": ("math.sqrt(size.length)", "1"),
            "every_term_may_miss": ("bound if name in optimised else", "bound if not optimised else"),
        },
    ),
    "commands/verification/program.py": (
        VERIFIED,
        {
            "updates_of_other_gradients": (
                '{"gradient": trees["gradient"]}',
                '{"gradient": self.state.params}',
            ),
            "kernels_in_the_shadow": ('"kernel": "reference",', ""),
            "masks_of_microbatches": ("(several or key ==", "(key =="),
            "every_key_it_may_not_have": (
                "            except UserError:\n                continue\n",
                "            except OSError:\n                continue\n",
            ),
        },
    ),
    "commands/verification/module_outputs.py": (
        VERIFIED,
        {"what_goes_in_has_no_place": ("f\"{owner or 'the model'}, before {name}\", x)", '"", x)')},
    ),
    "commands/config.py": (
        "tests/commands/test_help_page.py",
        {
            "every_key_unasked": ("    if every:\n", "    if not every:\n"),
            "values_of_defaults_alone": (
                'if value != key.default else "")\n    valid',
                'if False else "")\n    valid',
            ),
            "first_keys_uncounted": ("all {len(lines)} keys", "all keys"),
        },
    ),
    "transformer/run_folder.py": (
        "tests/faults/test_hostile_runs.py",
        {
            "links_are_followed": ("path.lstat() if os.path.lexists(path)", "path.stat() if path.exists()"),
            "linked_folders_are_followed": (
                "if path.is_symlink() or not path.is_dir():",
                "if not path.is_dir():",
            ),
            "pipes_are_files": ("not (stat.S_ISREG(status.st_mode) and", "not ("),
            "any_size": ("and status.st_size <= most)", ")"),
            "size_of_what_is_not_read": (" if is_read else sys.maxsize", ""),
            "folders_are_not_entered": ('itertools.chain([top], top.rglob("*"))', "[top]"),
            "checkpoints_of_others": ("if self.checkpoints.is_symlink() and", "if False and"),
        },
    ),
    "transformer/safe_files.py": (
        "tests/faults/test_hostile_runs.py",
        {
            "parts_through_links": (", opener=no_link) as file:", ") as file:"),
            "silent_without_locks": ("_warn_without_locks(Path(file.name).parent, error.strerror or", "str("),
            "said_each_time": ("@functools.cache\ndef _warn", "def _warn"),
        },
    ),
    "workdir/lock.py": (
        "tests/faults/test_hostile_runs.py",
        {"through_a_link": ('"a+", errors="replace", opener=no_link)', '"a+", errors="replace")')},
    ),
    "transformer/visualization/evaluations.py": (
        "tests/faults/test_hostile_runs.py",
        {
            "any_values": ("type(value) in (int, float)", "True"),
            "any_kinds": ("is not kind for key, kind", "is kind for key, kind"),
        },
    ),
    "transformer/requirements.py": (
        "tests/test_requirements.py",
        {
            "as_text": ("numbers(version) < numbers(bound)", "version < bound"),
            "newer_is_old": ('bound.startswith(">=") and', 'bound.startswith("<") and'),
            "zeros_count": ("while release and not release[-1]:", "while False:"),
            "the_first_platform_alone": (
                '.get("JAX_PLATFORMS", "").split(",")',
                '.get("JAX_PLATFORMS", "")[:4].split(",")',
            ),
            "plugins_forgotten": ('if importlib.metadata.entry_points(group="jax_plugins"):', "if False:"),
        },
    ),
    "commands/support/key_names.py": (
        "tests/commands/test_key_names.py",
        {
            "docstrings_have_keys": ('DOCSTRING.sub("", body)', "body"),
            "bases_forgotten": ("for base in bases for key", "for base in () for key"),
            "added_experiments_forgotten": ("if not all(isinstance(", "if False and not all(isinstance("),
            "mappings_have_no_keys": (' or name.startswith(f"{key}.")', ""),
            "no_initials": ("else initials or", "else"),
        },
    ),
    "commands/support/misspellings.py": (
        "tests/commands/test_flags.py",
        {
            "dashes_count": ('flag.lstrip("-"): flag', "flag: flag"),
            "keys_last": ("[] if is_last_part else ", ""),
            "own_files_too": ("if config and (not", "if False and (not"),
        },
    ),
    "commands/support/help_page.py": (
        "tests/commands/test_help_page.py",
        {
            "too_wide": ("len(longer) <= width - 2", "len(longer) <= width"),
            "no_continuation": ('" \\\\\\n".join(lines)', '"\\n".join(lines)'),
            "prose_stays": ('return textwrap.fill(" ".join(lines), width)', "return paragraph"),
        },
    ),
    "transformer/tracebacks.py": (
        "tests/commands/test_tracebacks.py",
        {
            "first_frame": (
                "reversed(traceback.extract_tb(error.__traceback__))",
                "traceback.extract_tb(error.__traceback__)",
            ),
            "libraries_too": ("and not is_library", ""),
            "installed_packages_too": ("and INSTALLED.isdisjoint(path.parts)", ""),
            "no_file": ("return path.is_file() and", "return"),
        },
    ),
    "transformer/data/source_names.py": (
        "tests/data/sources/test_source_names.py",
        {
            "suffix_of_the_archive": ('.removesuffix(".gz")', ""),
            "also_where_no_file_is": (
                "if name and path.exists() and likely in kinds:",
                "if likely in kinds:",
            ),
            "folders_are_files": ('place = f"{name}/*" if', "place = name if"),
        },
    ),
    "commands/exporters/gguf_file.py": (
        "tests/interop/test_encoder_readers.py",
        {
            "any_objective": ("if config.experiment not in OBJECTIVES:", "if False:"),
            "always_the_mean": ("POOLINGS[pooling])", '"MEAN")'),
            "heads_too": ("if short.startswith(architecture.heads or ()):", "if False:"),
        },
    ),
    "commands/exporters/gguf_tokenizers.py": (
        "tests/interop/test_encoder_readers.py tests/interop/test_gguf.py",
        {
            "no_mark_of_words": ('else f"\\u2581{text}"', "else text"),
            "continued_words_begin": ('text.removeprefix("##") if', "text if"),
            "words_with_case": (' and normalizer.get("strip_accents") is not False', ""),
            "any_case": ('"handle_chinese_chars": True, "lowercase": True}', '"handle_chinese_chars": True}'),
            "no_separator": ('yield "add_eos_token", True', 'yield "add_eos_token", False'),
            "special_as_text": ('"CONTROL" if item["special"]', '"NORMAL" if item["special"]'),
        },
    ),
    "commands/exporters/gguf_architectures.py": (
        "tests/interop/test_gguf.py tests/interop/test_readers.py tests/interop/test_encoder_readers.py",
        {
            "scales_less_one": ("return x + 1 if", "return x if"),
            "every_window": ("if types != [FULL if", "if False and [FULL if"),
            "any_scale": ('if scalar != values["head_dim"] or', "if"),
            "the_largest_is_as_others": ("len(types) == {2: 46, 6: 62}[every]", "False"),
            "no_cap": ("if values[key] is None:", "if False:"),
            "scaled_positions": ('if values["rope_scaling"]["rope_type"] != "default":', "if False:"),
            "scaled_windows": (
                '{FULL: ("default", "linear")}.get(kind, ("default",))',
                '("default", "linear")',
            ),
            "one_base": (
                '"rope_freq_base_swa": base_of(SLIDING),\n    "rope_scaling_type"',
                '"rope_scaling_type"',
            ),
            "any_activation": ('if values["hidden_act"] not in', "if False and values not in"),
            "biases": ('if values["norm_bias"]:', "if False:"),
            "other_windows": ("if types != [SLIDING if", "if False and [SLIDING if"),
            "not_in_their_order": (".swapaxes(1, 2)", ".swapaxes(1, 1)"),
            "order_of_all_architectures": (
                'Architecture("qwen2", LLAMA, PLAIN)',
                'Architecture("qwen2", LLAMA, PLAIN, permuted)',
            ),
            "kernels_as_they_are": ('if x.ndim == 2 and ".h." in name', "if x.ndim == 3"),
            "tables_transposed": (' and ".h." in name', ""),
            "windows_forgotten": ('"sliding_window": None}', '"sliding_windows": None}'),
        },
    ),
    "transformer/visualization/html.py": (
        "tests/visualization/test_run_page.py",
        {
            "text_is_markup": ("return Markup(html.escape(shown))", "return Markup(shown)"),
            "quotes_end_attributes": ("html.escape(shown)", "html.escape(shown, quote=False)"),
            "markup_is_escaped_twice": ("if isinstance(child, Markup):", "if False:"),
            "control_characters_stay": ("if ord(c) < 32 and", "if False and"),
            "titles_without_content": ("if content else content\n\n\ndef page", "\n\n\ndef page"),
        },
    ),
    "transformer/visualization/svg.py": (
        "tests/visualization/test_run_page.py",
        {
            "the_first_losses_count": (
                "float(values.min()), axis_limit(values)",
                "float(values.min()), float(values.max())",
            ),
            "curves_leave_their_axes": ("y(min(max(value, low), high))", "y(value)"),
            "other_ticks": ("(1, 2, 5, 10)", "(1, 3, 5, 10)"),
            "upside_down": ("(value - low) / (high - low)", "(high - value) / (high - low)"),
            "all_points_are_drawn": (
                "np.linspace(0, len(values) - 1, MAX_DRAWN_POINTS)",
                "np.arange(len(values))",
            ),
        },
    ),
    "transformer/visualization/run_page.py": (
        "tests/visualization/test_run_page.py",
        {
            "speeds_are_the_last": ("if metric in MEDIANS else", "if False else"),
            "the_first_samples": ("round(i * (len(files) - 1) / (SAMPLES - 1))", "i"),
            "every_start_again": ("if about == before:", "if False:"),
        },
    ),
    "commands/exporters/stablehlo.py": (
        "tests/commands/test_stablehlo.py",
        {
            "room_is_not_counted": ("flags.length + (flags.room", "flags.length + (0 * flags.room"),
            "the_end_is_not_heard": ('if token[0] == shape["eos_id"]:', "if False:"),
            "one_token_too_many": ('while len(new) < shape["room"]:', 'while len(new) <= shape["room"]:'),
            "types_of_few_bits": ("stored[name].view(kind)", "stored[name]"),
            "all_models_generate": ("if experiment.stepper is None:", "if False:"),
            "nothing_is_a_length": ("vars(flags)[name] < 1:", "vars(flags)[name] < 0:"),
            "any_platform": ("if platform not in PLATFORMS:", "if False:"),
        },
    ),
    "transformer/decoding/exported.py": (
        "tests/commands/test_stablehlo.py",
        {
            "caches_are_not_kept": ("return logits_bv, jax.tree.leaves(after)", "return logits_bv, cache"),
            "all_rows_are_full": (
                "prefill(tokens_bt, lengths_b, room)",
                "prefill(tokens_bt, 0 * lengths_b + 6, room)",
            ),
        },
    ),
    "workdir/provenance.py": (
        "tests/commands/test_report_command.py",
        {
            "only_the_last_start": ("read_starts(folder) if step else []", "[]"),
            "keys_are_left_out": ('f"--workdir={workdir}", *keys)', 'f"--workdir={workdir}")'),
        },
    ),
    "commands/sweeps/algebra.py": (
        "tests/commands/test_sweep.py",
        {
            "commas_in_brackets_separate": ('(letter in "([{") - (letter in ")]}")', "0"),
            "quotes_do_not_count": ("quote = letter", 'quote = ""'),
            "equal_numbers_differ": ("repr(int(number) if whole else exact)", "value"),
            "long_values_are_cut": ("safe == text and", "safe == text or"),
            "keys_are_not_safe": ("map(_in_a_name, shortened(keys))", "shortened(keys)"),
            "a_stage_is_a_number": ("if before and part.isdecimal()", "if False"),
            "two_keys_have_a_name": ("if last.count(part) > 1", "if False"),
            "dots_end_a_source": ('key.partition("data.sources.")[2]', '""'),
            "zips_are_cut": ("if len({len(sweep) for sweep in sweeps}) > 1:", "if False:"),
            "equal_runs_are_trained_twice": ("if name in unique:", "if False:"),
        },
    ),
    "commands/sweeps/measuring.py": (
        "tests/commands/test_compare.py tests/commands/test_scaling.py",
        {
            "unmeasured_to_the_end": ('if job.outcome == "finished":', "if False:"),
            "diverged_is_compared": ("if math.isnan(value):", "if False:"),
            "giving_up_is_failing": (".startswith(GAVE_UP)", ".startswith(())"),
        },
    ),
    "commands/sweeps/comparison.py": (
        "tests/commands/test_compare.py",
        {
            "a_minus_b": ("[b - a for a, b in self.pairs", "[a - b for a, b in self.pairs"),
            "more_is_never_better": ('better = "more" if', 'better = "less" if'),
            "diverging_is_no_answer": ("self.verdict() or self.diverges()", "self.verdict()"),
            "the_other_diverges": ("alone = [math.isnan(b)", "alone = [math.isnan(a)"),
            "alone_is_unsaid": ("{**unpaired, alone: unmatched[alone]}", "unpaired"),
            "several_settings": (
                "only(rows_of(runs, metric, sign, False), flag)",
                "rows_of(runs, metric, sign, False)[0]",
            ),
        },
    ),
    "commands/sweeps/jobs.py": (
        "tests/commands/test_sweep.py",
        {
            "diverged_is_not_measured": ("if metric in line]", "if line.get(metric)]"),
            "all_configs_are_the_same": ('content.get("config") == digest(self.values)', "True"),
            "what_has_ended_begins_again": ('in ("finished", "stopped", "diverged")', "in ()"),
            "one_gpu_for_all": ("gpus[slot % len(gpus)]", "gpus[0]"),
            "locks_do_not_count": ("elif job.free and", "elif"),
            "signals_are_ignored": ("(self.queue and not self.signals)", "self.queue"),
            "failed_runs_have_not_failed": ("self.failed += 1", "pass"),
            "errors_leave_runs": (
                'job.stop("interrupted")\n            for number',
                "pass\n            for number",
            ),
            "runs_of_killed_commands_fail": (" or not job.free:", ":"),
        },
    ),
    "commands/sweeps/halving.py": (
        "tests/commands/test_sweep.py",
        {
            "diverged_is_not_hopeless": (
                "= math.inf if math.isnan(value) else",
                "= 0.0 if math.isnan(value) else",
            ),
            "less_is_worse": ("self.sign * value\n", "-self.sign * value\n"),
            "the_first_is_stopped": ("len(table) >= self.factor and ", ""),
            "compared_once": ("step *= self.factor", "step = job.steps"),
            "other_steps_are_compared": ("if len(intervals) > 1:", "if False:"),
            "unmeasured_goes_on": ('job.outcome == "finished" and not', "False and not"),
        },
    ),
    "commands/sweeps/spaces.py": (
        "tests/commands/test_optuna_search.py",
        {
            "all_ranges_are_whole": ('whole = kind.startswith("int") or', "whole = True or"),
            "drawn_numbers_leave_their_range": (
                'min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)',
                'float(f"{value:.{DIGITS}g}")',
            ),
            "numbers_have_all_digits": ("DIGITS = 4", "DIGITS = 17"),
            "one_end_is_checked": (
                "[self.setting(self.low), self.setting(self.high)]",
                "[self.setting(self.low)]",
            ),
            "logarithms_of_zero": ("if log and ends[0] <= 0:", "if log and ends[0] < 0:"),
            "ranges_of_one": ("if not ends[0] < ends[1]:", "if not ends[0] <= ends[1]:"),
            "keys_fit_alone_only": ("COMBINATIONS = 256", "COMBINATIONS = 1"),
            "keys_are_searched_twice": ("if key in keys[:number]]", "if not key]"),
            "choices_are_counted_twice": ("if len(by_text) < len(settings):", "if False:"),
        },
    ),
    "commands/sweeps/trials.py": (
        "tests/commands/test_optuna_search.py",
        {
            "draws_begin_again": ('digest("search", self.seed, self.drawn)', 'digest("search", self.seed)'),
            "seeds_do_not_count": ('digest("search", self.seed, self.drawn)', 'digest("search", self.drawn)'),
            "trials_are_lost": (
                "self.add(trial.number, trial.params)\n            elif",
                "pass\n            elif",
            ),
            "one_trial_more": ("self.drawn < self.total", "self.drawn <= self.total"),
            "halves_are_trials": ("[*filter(self.is_whole, all_trials)]", "[*all_trials]"),
            "less_is_always_better": (
                '"maximize" if metric.startswith("-") else',
                '"minimize" if metric else',
            ),
            "failures_are_forgotten": ('"PRUNED" if outcome == "stopped" else "FAIL"', '"PRUNED"'),
            "nan_is_a_value": ("if math.isfinite(value):", "if True:"),
            "halving_forgets": ('elif self.halving and trial.state.name != "FAIL":', "elif False:"),
            "any_search_goes_on": ("if value != (now := request.get(key)):", "if (now := 0):"),
            "arrays_search": (' or "SLURM_ARRAY_TASK_ID" in os.environ', ""),
        },
    ),
    "workdir/recovery/damage.py": (
        "tests/faults/test_damaged_checkpoints.py",
        {
            "the_last_one_too": ("< 2:", "< 1:"),
            "deleted": ("path.rename(place)", "__import__('shutil').rmtree(path)"),
            "written_over": ("while free_path.exists():", "while False:"),
        },
    ),
    "workdir/opening.py": (
        "tests/workdir/test_inherited.py tests/workdir/test_devices_here.py "
        "tests/interop/test_import.py::test_a_warm_start_takes_what_ends_a_text_from_a_folder_and_from_its_import",
        {
            "sizes_of_the_config": (
                "return inherit(values, folder, overrides) if needed else values",
                "return values",
            ),
            "end_tokens_lost": ("here |= {key: there[key]", "{key: there[key]"),
            "given_keys_lose": ("override(values, overrides)\n    return from_values", "return from_values"),
        },
    ),
    "commands/evaluate.py": (
        "tests/data/sources/test_work.py::test_documents_are_written_by_their_loss",
        {"sources_read_by_loss": ("losses = sorted(losses, key=lambda document: document.number)", "pass")},
    ),
    "workdir/compatibility/inheritance.py": (
        "tests/workdir/test_same_function.py",
        {
            "lengths_follow": (
                "config.model.settled() if isinstance(config.model, ModelConfig) else {}",
                "{}",
            ),
            "tokenizers_are_asked_for_in_vain": ("if stored != new:", "if False:"),
            "only_given_keys": ('if difference.effect != ""\n        and not', "if False and not"),
        },
    ),
    "commands/sweeps/settings.py": (
        "tests/workdir/test_inherited.py",
        {"idle_keys_are_tried": ("    refuse_idle(frozen)\n", "")},
    ),
    "workdir/compatibility/devices_here.py": (
        "tests/workdir/test_devices_here.py",
        {
            "devices_without_rows": ("math.gcd(most, rows) if axis", "most if axis"),
            "data_first": (
                '("tensor", "fsdp", "expert", "context", "data")',
                '("data", "tensor", "fsdp", "expert", "context")',
            ),
            "given_meshes_change": ('any(key.startswith("parallel.mesh") for key, _ in overrides)', "False"),
        },
    ),
    "commands/support/columns.py": (
        "tests/commands/test_predict.py::test_a_file_is_read_by_the_same_rule_everywhere",
        {
            "tables_are_lines": ('return f"{kind}:{text}"', 'return ""'),
            "tables_that_are_not_read": ("if kind not in data.kinds:", "if False:"),
        },
    ),
    "commands/support/texts.py": (
        "tests/commands/test_predict.py::test_only_a_line_feed_ends_a_line",
        {
            "marks_are_text": ('"utf-8-sig" if number == 1 else "utf-8"', '"utf-8"'),
            "packed_files_are_text": ("path.suffix.lower() in PACKED", "False"),
        },
    ),
    "commands/table.py": (
        "tests/commands/test_table.py",
        {
            "seeds_are_rows": ('    "seed",\n', ""),
            "logging_is_a_row": ('    "train.log_",\n', ""),
            "more_evaluations_are_the_same": ('["train.evaluate_every"] * best', "[]"),
            "longer_means_are_the_same": ('["train.log_every"] * metric', "[] * metric"),
            "worst_first": ("rank(sign * row.mean)", "rank(-sign * row.mean)"),
            "diverged_is_the_best": ("and not self.rows[0].has_diverged", ""),
        },
    ),
    "commands/sweeps/table_files.py": (
        "tests/commands/test_table.py",
        {
            "bars_divide_cells": ("in_markdown(cell)", "cell"),
            "values_of_every_seed": ("for own, value in values if own == seed", "for own, value in values"),
            "short_keys_in_files": ("keys = [*rows[0].columns]", "keys = []"),
        },
    ),
    "transformer/visualization/latex.py": (
        "tests/visualization/test_latex.py",
        {
            "options_of_the_line_before": ('for c in "[*"}', 'for c in ""}'),
            "commands": ('"\\\\": r"\\textbackslash{}"', '"\\\\": "\\\\"'),
            "dashes": ('re.sub(r"(?<=([-\',]))\\1"', 're.sub(r"(?<=([\',]))\\1"'),
            "quotes": ('    "`": "{`}"', '    "`": "`"'),
            "escape_codes": ("printable(text).split()", "text.split()"),
        },
    ),
    "commands/sweeps/rows.py": (
        "tests/commands/test_table.py",
        {
            "spread_of_n": ("statistics.stdev", "statistics.pstdev"),
            "best_is_the_last": ("run.best(metric, sign) if best", "run.last(metric) if best"),
            "steps_are_mixed": ("run.step_of(metric) == furthest", "True"),
            "gave_up_is_unmeasured": ("or (TRAINED in self.measured and", "or (False and"),
            "skipped_is_unmeasured": ("lost = skipped > trained or", "lost = False or"),
            "diverged_was_earlier": ("run.has_diverged(metric) or run.step_of", "run.step_of"),
            "diverged_unsaid": ("DIVERGED if self.has_diverged else mean", "mean"),
            "diverged_anywhere": ("return math.inf if math.isnan(value)", "return 0.0 if math.isnan(value)"),
        },
    ),
    "commands/sweeps/footnotes.py": (
        "tests/commands/test_table.py",
        {
            "unmeasured_is_unsaid": ('*listed(f"left out without {metric}", absent),', ""),
            "earlier_is_unsaid": ("if run.has(metric)]\n    again", "if False]\n    again"),
            "a_seed_twice_is_unsaid": ("if seeds[i] in seeds[:i]", "if False"),
        },
    ),
    "commands/sweeps/paired.py": (
        "tests/commands/test_table.py",
        {
            "plain_minus_changed": ("[value - expected for", "[expected - value for"),
            "baseline_blames_the_change": ("in paired if seed not in lost", "in paired"),
            "other_steps_are_a_pair": (
                "return run.step_of(metric) == partner.step_of(metric)",
                "return True",
            ),
            "unfinished_of_other_lengths": ("return all(trained.last_step", "return any(trained.last_step"),
            "zero_is_outside": ("low > 0 or high < 0", "True"),
            "worst_first": ("sign * row.mean_difference)", "row.mean_difference)"),
            "any_rows": ("if len(rows) > 1:", "if False:"),
            "last_of_a_seed": ('run.config["seed"]) in by_seed', 'run.config["seed"]) is None'),
            "keys_that_are_the_same": ("if value != plain.keys[key]", "if True"),
            "at_no_value": ("json.dumps([row.keys[key] for key in keys])", '""'),
            "values_as_text": ("isinstance(x, (int, float)) else", "False else"),
            "without_a_baseline_is_unsaid": (
                "left_out.setdefault(reason, []).extend(names)\n            continue",
                "continue",
            ),
        },
    ),
    "commands/compare.py": (
        "tests/commands/test_compare.py",
        {
            "steps_do_not_follow": ("round(steps[0] * flops[0] / flops[1])", "steps[0]"),
            "tuned_to_the_worst": ("best = min(range(len(rates))", "best = max(range(len(rates))"),
            "tuned_on_the_pairs": (
                "optimizer__learning_rate=tried, seed=TUNING_SEED",
                "optimizer__learning_rate=tried, seed=0",
            ),
        },
    ),
    "transformer/evaluation/statistics/sequential.py": (
        "tests/evaluation/statistics/test_sequential.py",
        {
            "two_tests_in_one": ("(math.sqrt(wide) / error)", "(1 / error)"),
            "spread_is_known": ("needed >= wide", "False"),
            "fewer_degrees": ("(n - 1) * (needed - 1)", "n * (needed - 1)"),
            "rates_of_one_look": ("log_beta - seen - unseen", "0 - seen - unseen"),
            "any_difference_matters": ("smallest and -smallest <= low", "-smallest <= low"),
        },
    ),
    "commands/scaling_laws/sizes.py": (
        "tests/commands/test_scaling.py",
        {
            "rates_grow_with_width": (
                "(model['d_model'] / width) ** 0.5",
                "(width / model['d_model']) ** 0.5",
            ),
            "rates_fall_with_mup_too": ('if model.get("parametrization") != "mup":', "if True:"),
            "widths_are_rounded_down": ("heads = -(-depth * ", "heads = (depth * "),
            "heads_are_not_divided": ("if number % divisor == 0]", "]"),
            "the_smallest_divisor": ("max(divisor / ideal, ideal / divisor)", "divisor / ideal"),
            "warmup_is_not_stretched": ("max(1, round(steps * share))", "of_config"),
            "any_number_of_steps_will_do": ("if steps < LEAST_STEPS:", "if False:"),
            "products_by_two": ("self.flops_per_token / 6", "self.flops_per_token / 2"),
            "seeds_may_be_keys": ('if "seed" in dict(self.overrides):', "if False:"),
        },
    ),
    "commands/analyze.py": (
        "tests/commands/test_analyze.py",
        {
            "spaces_of_tokens_are_blank": ("{visible(name)}", "{name}"),
            "characters_are_counted_as_tokens": ("{len(tokens)} tokens of", "{len(text)} tokens of"),
        },
    ),
    "commands/scaling_laws/forecast.py": (
        "tests/commands/test_scaling.py",
        {
            "forecasts_after_the_run": ('if (folder / name / "config.json").exists():', "if False:"),
            "earlier_forecasts_do_not_count": ("if there else []", "if False else []"),
            "configs_may_change": ('if digest(job.values) != forecast["config"]:', "if False:"),
            "forecasts_of_what_is_known": ("if budget <= (most :=", "if 0 > (most :="),
            "errors_are_absolute": ('forecast["loss"] / actual - 1', 'forecast["loss"] - actual'),
        },
    ),
    "commands/scaling.py": (
        "tests/commands/test_scaling.py",
        {
            "half_a_layer": ("any(not depth.is_integer() for depth in depths)", "False"),
            "three_sizes_are_enough": ("flags.depths, LEAST_SIZES)", "flags.depths, 3)"),
            "three_that_are_left_are": ("if len(depths) < LEAST_SIZES:", "if False:"),
            "forecasts_are_checked_after": ("if flags.config and flags.forecast is not None:", "if False:"),
            "the_rest_has_a_mean": ("if len(values) >= whole", "if True"),
            "the_greatest_is_marked": ("budget: min((value", "budget: max((value"),
        },
    ),
    "transformer/evaluation/statistics/scaling_law.py": (
        "tests/evaluation/statistics/test_scaling_law.py",
        {
            "tokens_as_parameters": (
                "return self.b / (self.a + self.b)",
                "return self.a / (self.a + self.b)",
            ),
            "best_is_worst": ("np.log(self.a / self.b) +", "np.log(self.b / self.a) +"),
            "fits_stop_early": ("ENOUGH = 1e-8", "ENOUGH = 0.1"),
            "outliers_count_fully": (
                "np.where(size < HUBER, size**2 / 2,",
                "np.where(size < 9, size**2 / 2,",
            ),
            "centres_are_lost": ("log_a + a * centre[0]", "log_a"),
            "maxima_are_minima": ("np.where(bend > 0, slope", "np.where(bend < 9, slope"),
            "parameters_cost_nothing": ("len(error_k) - parameters", "len(error_k)"),
        },
    ),
    "transformer/visualization/attention_maps.py": (
        "tests/visualization/test_attention_maps.py",
        {
            "first_heads_beside": ("np.float32).mean(axis=0) for name", "np.float32)[0] for name"),
            "own_scales_beside": ("look = _look(means.values())", "look = _look([*means.values()][:1])"),
        },
    ),
    "transformer/visualization/run_curves.py": (
        "tests/commands/test_table.py",
        {
            "bands_of_one_run": ("values.min(0), values.max(0)", "values[0], values[0]"),
            "axes_are_linear": ('axes.set_xscale("log")', "pass"),
            "points_have_labels": ('    colour, label = COLOURS[0], ""', "    pass"),
            "all_values_are_ticks": (
                "if np.diff(logs).min() >= LEAST_SPACE * (logs[-1] - logs[0]):",
                "if True:",
            ),
            "middles_of_intervals": ('axes.plot(mean, place, "o"', 'axes.plot((low + high) / 3, place, "o"'),
        },
    ),
}
