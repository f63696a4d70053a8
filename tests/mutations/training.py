"""Mutations of training, its sums and its processes: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "experiments/denoising/electra.py": (
        "tests/experiments/test_electra.py",
        {
            "weight_of_one": (
                "Sum.of(self.config.loss.detection * bce_bt, real_bt)",
                "Sum.of(bce_bt, real_bt)",
            ),
            "through_the_report": ("jax.lax.stop_gradient(bce_bt)", "bce_bt"),
            "likeliest": ("jnp.argmax(logits_bmv + noise_bmv, axis=-1)", "jnp.argmax(logits_bmv, axis=-1)"),
            "masked_is_replaced": ('corrupted_bt != batch["original"]', 'tokens_bt != batch["original"]'),
            "reads_the_masks": ("apply(corrupted_bt, method", "apply(tokens_bt, method"),
            "places_of_padding": (
                "jnp.where(before_bm == self.data.special_tokens.mask, drawn_bm, before_bm)",
                "drawn_bm",
            ),
            "of_masked_alone": (
                '{"detection": jnp.sum(batch["real"])}',
                '{"detection": jnp.sum(batch["guessed"])}',
            ),
            "recall_of_all": ("real_bt * replaced_bt", "real_bt"),
            "pairs": ("if self.data.next_sentence:", "if False:"),
        },
    ),
    "transformer/training/logging/events.py": (
        "tests/training/logging/test_tensorboard.py",
        {
            "markdown": ('textwrap.indent(text, "    ", lambda line: True)', "text"),
            "blank_lines": (", lambda line: True)", ")"),
            "truth_is_a_number": ("case bool():", "case ():"),
            "one_file": ("if len(event_files(self._directory)) != self._files:", "if False:"),
            "a_file_each_time": ("if len(event_files(self._directory)) != self._files:", "if True:"),
            "no_config": ("if keys := config_keys(folder):", "if keys := {}:"),
            "another_name": ("SessionStartInfo(group_name=name)", "SessionStartInfo()"),
        },
    ),
    "transformer/run_folder.py": (
        "tests/training/logging/test_tensorboard.py",
        {
            "new_folder": ("if self.earlier_events.is_dir() else self.path", "if False else self.path"),
            "under_another_name": ("if self.earlier_events.is_dir() else self.path", ""),
        },
    ),
    "transformer/training/hooks.py": (
        "tests/training/logging/test_tensorboard.py",
        {
            "no_texts": ('self.show("samples", ', '(lambda *_: None)("samples", '),
            "always_events": ('if "tensorboard" in names_of(self.config.writers):', "if True:"),
        },
    ),
    "transformer/training/logging/writers.py": (
        "tests/training/logging/test_tensorboard.py",
        {"opened_late": ("RunEvents(folder, step) if again else None", "None")},
    ),
    "transformer/training/losses/info_nce.py": (
        "tests/training/losses/test_info_nce.py",
        {
            "copies_are_negatives": ("(ids_n == own_ids_b[:, None]) | ", ""),
            "padding_is_a_negative": (" | (ids_n < 0)", ""),
            "answers_are_negatives": (" | answers_bbc.reshape(b, b * c)", ""),
            "own_is_left_out": ("no_negative_bn & ~own_bn", "no_negative_bn & own_bn"),
            "back_over_hard_negatives": ("score_bn[:, ::c].T", "score_bn[:, :b].T"),
            "copies_back": (" | (own_ids_b == own_ids_b[:, None])", ""),
            "padding_back": ("equal_bb | (query_ids_b < 0)", "equal_bb"),
        },
    ),
    "experiments/dpo.py": (
        "tests/test_chat_run.py",
        {
            "reference_with_full_attention": ('rows.referring_to(self.data.reference("train"))', "rows"),
            "no_reference": ('(log_p_bk2 - batch["reference"])', "log_p_bk2"),
            "the_worse_is_better": (
                "reward_bk2[..., 0] - reward_bk2[..., 1]",
                "reward_bk2[..., 1] - reward_bk2[..., 0]",
            ),
            "prompts_count": ('-nll_bt * batch["answers"]', "-nll_bt"),
            "never_by_the_token": ('if c.kind != "dpo":', "if False:"),
            "always_by_the_token": ('if c.kind != "dpo":', "if True:"),
            "no_margin": ("margin_bk - c.gamma)", "margin_bk)"),
            "simpo_has_a_reference": ('if config.loss.kind != "simpo":', "if True:"),
        },
    ),
    "transformer/training/signals.py": (
        "tests/training/test_processes.py",
        {
            "one_process_leaves_an_evaluation": (
                "self._raising = jax.process_count() == 1",
                "self._raising = True",
            )
        },
    ),
    "transformer/training/checkpoints/initialize.py": (
        "tests/workdir/test_same_function.py",
        {
            "another_function": ("if changing and may_be_new is not None:", "if False:"),
            "last_of_several": ("checkpoints.steps()[-averaged:-1]", "()"),
        },
    ),
    "experiments/vision.py": (
        "tests/workdir/test_same_function.py",
        {
            "positions_by_number": ("if learned and not same else origin", "if False else origin"),
            "any_positions": ('self._counting == {"learned"}', "True"),
        },
    ),
    "transformer/sums.py": (
        "tests/training/test_step.py tests/training/losses/test_token_losses.py tests/models/test_terms.py",
        {
            "weights_of_ones": ("cls(jnp.sum(values * weights)", "cls(jnp.sum(values)"),
            "first_weight_alone": (
                "Sum(self.total + other.total, self.weight + other.weight)",
                "Sum(self.total + other.total, self.weight)",
            ),
        },
    ),
    "transformer/training/losses/token_losses.py": (
        "tests/training/losses/test_token_losses.py",
        {
            "smoothing_in_evaluation": ("config.label_smoothing if train else 0.0", "config.label_smoothing"),
            "smoothing_over_padding": ("0.0), axis=-1) / vocab_size", "0.0), axis=-1) / log_p_btv.shape[-1]"),
            "smoothing_share": ("(1 - label_smoothing) * loss_bt + label", "loss_bt + label"),
            "z_loss_not_squared": (
                "config.z_loss * jnp.square(log_z_bt)",
                "config.z_loss * jnp.abs(log_z_bt)",
            ),
            "nats_per_byte": ("Sum(nll.total / math.log(2), Sum", "Sum(nll.total, Sum"),
            "model_terms_unweighted": (
                "Sum(coefficient * rows * sums[name].mean, float(rows))",
                "Sum(coefficient * sums[name].mean, float(rows))",
            ),
        },
    ),
    "transformer/training/losses/logits_memory.py": (
        "tests/training/losses/test_logits_memory.py tests/training/losses/test_token_losses.py",
        {
            "chunks_out_of_order": (
                "return tuple(r.swapaxes(0, 1).reshape(batch, -1)[:, :t] for r in results)",
                "return tuple(r.reshape(batch, -1)[:, :t] for r in results)",
            ),
            "padding_counts": ("tokens_v < vocab_size, tokens_v ==", "tokens_v >= 0, tokens_v =="),
            "mean_over_padding": (
                "sum_kbt.sum(axis=0) / vocab_size",
                "sum_kbt.sum(axis=0) / (vocab_size + 1)",
            ),
            "smoothing_share_of_parts": ("(1 - label_smoothing) * loss_bt + label", "loss_bt + label"),
            "sum_of_logarithms": ("jax.nn.logsumexp(log_z_kbt, axis=0)", "log_z_kbt.sum(axis=0)"),
            "gradients_in_the_type_of_states": ("x_btd = x_btd.astype(jnp.float32)", "pass"),
            "all_logits_are_kept": ("    @jax.checkpoint\n    def statistics", "    def statistics"),
            "parts_across_devices": ('x.shape[axis:], sharded_over("vocab")', "x.shape[axis:], ((), 1)"),
        },
    ),
    "transformer/training/losses/focal.py": (
        "tests/training/losses/test_token_losses.py",
        {
            "probability_itself": ("-jnp.expm1(log_p)", "jnp.exp(log_p)"),
            "gradient_not_finite": (", jnp.finfo(log_p.dtype).tiny)", ", 0.0)"),
        },
    ),
    "transformer/training/losses/label_losses.py": (
        "tests/training/losses/test_label_losses.py",
        {
            "smoothing_sums": (
                "label_smoothing * log_p.mean(axis=-1)",
                "label_smoothing * log_p.sum(axis=-1)",
            ),
            "accuracy_balanced": ('Sum.of(right, batch["weights"])', "Sum.of(right, weights)"),
            "balanced_by_the_count": ("(len(counts_c) * counts_c)", "len(counts_c) * counts_c"),
        },
    ),
    "transformer/training/logging/trackers.py": (
        "tests/training/logging/test_writers.py",
        {
            "errors_of_a_tracker_end_training": ("raise OSError(reason(error)) from error", "raise"),
            "keys_kept_before_they_are_taken": (
                "        self._mlflow = mlflow\n",
                '        self._mlflow = mlflow\n        keep_id(folder, "mlflow", known or "0")\n',
            ),
            "failed_runs_finish": ("return sys.exc_info()[0] is not None", "return False"),
        },
    ),
    "transformer/training/losses/negative_sampling.py": (
        "tests/training/losses/test_negative_sampling.py",
        {
            "signs_swapped": ("jax.nn.softplus(-near_bts)", "jax.nn.softplus(near_bts)"),
            "word_itself": ("(distance_ts > 0) & ", ""),
            "one_negative": ("negatives * repulsion.total", "repulsion.total"),
        },
    ),
    "transformer/training/step.py": (
        "tests/training/test_step.py",
        {
            "weights_of_the_microbatch": (
                "weights = experiment.weigh(batch)\n",
                "weights = {name: 2 * w for name, w in experiment.weigh(batch).items()}\n",
            ),
            "same_noise_each_step": (
                "jax.random.fold_in(jax.random.key(seed), state.step)",
                "jax.random.fold_in(jax.random.key(seed), 0)",
            ),
            "nan_applied": (
                "lambda new, old: jnp.where(finite, new, old), new, state)",
                "lambda new, old: new, new, state)",
            ),
            "clipping_always": ("scale = jnp.minimum(1.0, clip_norm", "scale = (clip_norm"),
            "skipped_not_counted": (
                "skipped = state.skipped + (1 - finite.astype(jnp.int32))",
                "skipped = state.skipped",
            ),
            "average_biased": ("weight = (1 - decay) / -jnp.expm1(update * log)", "weight = 1 - decay"),
            "average_counts_skipped": ("state.step + 1 - state.skipped)", "state.step + 1)"),
            "rate_of_updates": ("state.params, step=state.step)", "state.params)"),
            "gradients_dropped": ("if name in weights else reported(name, term)", ""),
            "rows_of_parts_joined_wrongly": (
                "x.swapaxes(0, 1).reshape(-1, *x.shape[2:])",
                "x.reshape(-1, *x.shape[2:])",
            ),
        },
    ),
    "transformer/training/extras/replicas.py": (
        "tests/training/extras/test_replicas.py",
        {
            "gradients_of_one_device": ("*jax.lax.psum(sums, REPLICAS), carry", "*sums, carry"),
            "same_numbers_on_all": ("_of_block(rng, jax.lax.axis_index(REPLICAS))", "rng"),
            "other_axes_are_replicas": ("== mesh.size", ">= 1"),
            "rows_of_the_first_block": ("row_b = block * jnp.uint32(shape[0]) +", "row_b ="),
            "no_carry_of_positions": ("high + (moved < low)", "high + jnp.zeros_like(moved)"),
            "no_carry_of_products": ("(a_low * b_low >> 16)", "jnp.uint32(0)"),
            "split_keys_lose_the_block": (
                "jnp.broadcast_to(key[2], (*shape, 1))",
                "jnp.zeros((*shape, 1), key.dtype)",
            ),
            "folded_keys_lose_the_block": (
                "THREEFRY.fold_in(key[:2], data), key[2])",
                "THREEFRY.fold_in(key[:2], data), jnp.uint32(0))",
            ),
        },
    ),
    "transformer/training/optim/optimizer.py": (
        "tests/training/optim/test_optimizer.py",
        {"rate_of_updates": ("lambda count: schedule(step)", "schedule")},
    ),
    "transformer/training/optim/schedules.py": (
        "tests/training/optim/test_optimizer.py",
        {
            "warm_up_from_zero": (
                "minimum(1.0, (count + 1) / max(1, warmup_steps))",
                "minimum(1.0, count / max(1, warmup_steps))",
            ),
            "whole_wave": ("xp.cos(np.pi * progress)", "xp.cos(2 * np.pi * progress)"),
            "final_fraction_ignored": ("(final_fraction + (1 - final_fraction) * wave)", "wave"),
            "decay_from_the_start": ("stable = steps - decay_steps", "stable = 0"),
            "jump_upwards": ("xp.minimum(after(count), risen)", "after(count)"),
        },
    ),
    "transformer/training/logging/throughput.py": (
        "tests/training/logging/test_throughput.py",
        {"frozen_kernels_have_gradients": ("settings, params))) / 3", "settings, params))) * 0")},
    ),
    "transformer/training/metrics.py": (
        "tests/training/test_loop.py tests/training/logging/test_throughput.py",
        {
            "rate_of_the_next_step": ("self.learning_rate(self._step - 1)", "self.learning_rate(self._step)"),
            "skipped_in_means": (
                "            self.skipped += 1\n            return\n",
                "            self.skipped += 1\n",
            ),
            "pauses_counted": (
                "elapsed = self._end - self._start - self._paused",
                "elapsed = self._end - self._start",
            ),
        },
    ),
    "transformer/training/callbacks.py": (
        "tests/training/test_loop.py",
        {
            "interrupted_hooks_are_left": ("if not values or any(", "if True or any("),
            "hooks_are_called_twice": (
                'any(not name.startswith("train/") for name in values)',
                'any(name == "step" for name in values)',
            ),
            "hooks_before_the_signal_is_saved": (
                "            if name:\n                self.save_and_log(step, state, values)\n",
                "",
            ),
            "read_at_once": ("self.unread = info\n", "self.unread = info\n        self.read()\n"),
        },
    ),
    "transformer/training/extras/divergence.py": (
        "tests/faults/test_rollback.py tests/training/test_loop.py",
        {
            "not_in_a_row": ("self.in_a_row + 1 if skipped else 0", "self.in_a_row + skipped"),
            "from_the_step_before": ("step - self.in_a_row + 1", "step - self.in_a_row"),
            "never_doubtful": ("return bool(self.in_a_row and self.config.rollbacks)", "return False"),
            "forgotten_on_resuming": ("deque(_logged(self.metrics, step), RECENT)", "deque([], RECENT)"),
            "least_instead_of_median": ("statistics.median(self._losses)", "min(self._losses)"),
            "nan_passes": ("not loss - usual <= self.config.spike", "loss - usual > self.config.spike"),
        },
    ),
    "transformer/evaluation/nonfinite.py": (
        "tests/faults/test_rollback.py",
        {
            "gradients_forwards": (
                "self._places(self._gradients, -1)[::-1]",
                "self._places(self._gradients, -1)",
            ),
            "last_layer_first": ("seen[number][::direction][call]", "seen[number][call]"),
            "rows_of_the_part": ("row * parts + part if row >= 0", "row if row >= 0"),
            "loss_unseen": ("if not jnp.isfinite(loss):", "if False:"),
            "stack_unnamed": ('f"{self._path}{module.name}/"', "self._path"),
        },
    ),
    "workdir/recovery/rollback.py": (
        "tests/faults/test_rollback.py",
        {
            "not_counted": ("state.skipped + passed", "state.skipped"),
            "the_same_again": ("[step for step in good if step not in visited] or good", "good"),
            "a_bad_one": ("if step < error.since]", "if step <= error.step]"),
            "once_more": ("if len(done) >= most:", "if len(done) > most:"),
            "no_batch": ("np.savez_compressed(path, **batch)", "path.touch()"),
        },
    ),
    "commands/replay.py": (
        "tests/faults/test_rollback.py",
        {
            "through_a_rollback": ('any(at < rollback["step"] < last for rollback in undone)', "False"),
            "number_of_the_checkpoint": ("passed = step_of[at] - at", "passed = 0"),
            "other_random_numbers": ("jax.random.key(c.seed)", "jax.random.key(c.seed + 1)"),
        },
    ),
    "workdir/forking.py": (
        "tests/commands/test_fork.py",
        {
            "part_of_a_batch_again": (
                "-(-row // sizes[1])",
                "row // sizes[1]",
            ),
            "a_step_for_a_row": ("return step * config.train.batch_size", "return step"),
            "shift_of_a_fork_lost": (' - _rows_before(config, theirs["step"])', ""),
            "other_rows_in_the_middle": ("row = 0 if order else _row", "row = 0 if False else _row"),
            "seed_keeps_the_order": ('key == "seed" or (', "False or ("),
            "moved_data_are_others": ("(listed or not source", "(True or not source"),
            "validation_rows_are_trained_on": ('but="validation_source"', 'but=""'),
            "changed_data_unsaid": ("check_same_data(source, data)", "pass"),
            "lengths_forgotten": (
                'return theirs.get("rate", []), lengths',
                'return theirs.get("rate", []), []',
            ),
            "rate_of_a_fork_forgotten": ('return theirs.get("rate", []), lengths', "return [], lengths"),
            "rate_after_the_step": ("planned)(at - 1))]", "planned)(at))]"),
            "fresh_without_warm_up": ("return [at, 0.0], []", "return [], []"),
            "any_optimizer": ("if not fresh and stored != new:", "if False:"),
            "any_tokenizer": ("if key in TOKENIZER or", "if"),
            "steps_in_the_past": ("if config.train.steps <= at:", "if config.train.steps < at:"),
            "another_command_goes_on": ("if not same_step or any(", "if not same_step and any("),
            "made_in_place": ('target = RunFolder(part / "run")', "target = RunFolder(place)"),
            "carry_of_other_rows": ('else ""),\n    )\n    rate', 'else "")[:0],\n    )\n    rate'),
        },
    ),
    "transformer/training/checkpoints/fork.py": (
        "tests/commands/test_fork.py tests/evaluation/test_documents.py",
        {
            "documents_not_shifted": ("documents_at(step + self.shift)", "documents_at(step)"),
            "not_tried": ("else run.traced()", "else None"),
            "rate_not_relative": ("rate / config.learning_rate if", "rate if"),
            "batches_not_shifted": (
                "self.batches.iterate(start + self.shift)",
                "self.batches.iterate(start)",
            ),
            "average_lost": ('if stored.get("ema") is None:', "if True:"),
            "carry_lost": (
                '"carry": carry or (differs("carry")',
                '"carry": carry or ("x" or differs("carry")',
            ),
        },
    ),
    "workdir/compatibility/consistency.py": (
        "tests/workdir/test_consistency.py",
        {
            "digests_not_compared": ("if len({*distributed.gather_texts(digest(facts))}) == 1:", "if True:"),
            "equal_values_listed": ("if len(holders) > 1:", "if holders:"),
            "all_are_missing": ("if key in facts_of_process else", "if False else"),
            "training_split_of_sets": ('f"validation of {source}"', 'f"train of {source}"'),
            "sets_not_compared": ("in sets.items():", "in ():"),
        },
    ),
    "transformer/distributed.py": (
        "tests/workdir/test_consistency.py",
        {
            "the_shorter_is_padded": ("bytes(row[:size]).decode()", "bytes(row).decode()"),
            "everyone_gives_what_the_first_does": (
                "padded[: len(encoded)] = encoded",
                "padded[:1] = encoded[:1]",
            ),
        },
    ),
    "commands/support/ending.py": (
        "tests/faults/test_several_processes.py tests/faults/test_hostile_runs.py",
        {
            "escape_codes_reach_the_terminal": (
                "print(printable(line), file=sys.stderr, flush=True)\n    if",
                "print(line, file=sys.stderr, flush=True)\n    if",
            ),
            "panics_are_raised": ('== "PanicException"', '== "Panic"'),
            "nobody_is_told": (
                "distributed.announce_end(brief(why, MAX_ERROR_CHARACTERS), gone)\n",
                "pass\n",
            ),
            "what_was_told_is_not_read": ("distributed.announced_end() or (", "("),
            "waits_for_the_others": ("os._exit(code)\n", "sys.exit(code)\n"),
            "each_end_is_its_own": (
                "if distributed.PLACES and not distributed.all_are_ending():",
                "if False:",
            ),
        },
    ),
    "transformer/training/extras/compiler_options.py": (
        "tests/training/extras/test_compiler_options.py",
        {
            "nothing_is_compiled": ("program.compile(compiler_options=alone)", "pass"),
            "defaults_cannot_be_changed": (
                "{**default, **options, **needed}",
                "{**options, **default, **needed}",
            ),
            "layers_need_not_be_scanned": ("if scanned and known", "if known"),
            "every_compiler_knows_it": ("if scanned and known", "if scanned"),
            "every_device_is_of_nvidia": (' and "NVIDIA" in device.device_kind', ""),
            "default_devices": (", out_shardings=everywhere)", ", out_shardings=None)"),
            "any_type": ("if not isinstance(value, (bool, int, float, str)):", "if False:"),
        },
    ),
    "transformer/training/extras/agreement.py": (
        "tests/training/extras/test_agreement.py",
        {
            "each_asks_by_its_own_clock": ("given_pk[:, 0].min()", "given_pk[0, 0]"),
            "the_first_decides": ("given_pk[:, 1:].max(axis=0)", "given_pk[0, 1:]"),
            "few_steps_say_all": ("min(2 * self.steps, int(", "min(2**30, int("),
            "long_steps_are_not_waited_for": ("return max(1, min(", "return max(10, min("),
        },
    ),
    "transformer/training/checkpoints/resilience.py": (
        "tests/faults/test_full_disks.py",
        {
            "never_tried_again": (">= RETRY_SECONDS", ">= 9 * RETRY_SECONDS"),
            "waits_as_long_as_it_takes": ("- start < allowed", "- start < 1e9"),
            "ten_seconds_come_on_top": (
                "max(WAITING_SECONDS, WAITING_SHARE * (start - self.started))",
                "WAITING_SECONDS + WAITING_SHARE * (start - self.started)",
            ),
            "what_was_waited_is_forgotten": ("self._waited += time.monotonic() - start", "pass"),
            "what_it_has_written_stays": ("self._checkpoints.reopen()", "pass"),
            "another_folder_is_as_good": (
                "if not self._folder.is_unchanged():",
                "if False:",
            ),
            "the_end_may_fail": ("if not self.wait():", "if not self.wait() and False:"),
            "any_folder_of_this_name": (
                "return os.path.samestat(os.stat(self._path), os.fstat(self._open))",
                "return bool(os.stat(self._path))",
            ),
        },
    ),
    "transformer/safe_files.py": (
        "tests/faults/test_full_disks.py",
        {
            "half_a_file": ("part.unlink(missing_ok=True)", "pass"),
            "file_not_named": ("error.filename = str(path)", "pass"),
        },
    ),
    "transformer/training/extras/stragglers.py": (
        "tests/training/extras/test_stragglers.py",
        {
            "mean_device": ("float(np.median(all_pd[:, 1:]))", "float(np.mean(all_pd[:, 1:]))"),
            "a_little_slower": ("times_pd > SLOW * median", "times_pd > median"),
            "own_wait": ("all_pd[:, 0].max()", "all_pd[:, 0].min() * 0"),
            "goodput_of_all_steps": ("(step - before[0])", "step"),
            "more_than_all": ("min(1.0, stepping", "max(0.0, stepping"),
        },
    ),
    "transformer/training/checkpoints/storage.py": (
        "tests/faults/test_full_disks.py",
        {
            "half_a_piece": ("self._put(before, start)  # in", "pass  # in"),
        },
    ),
    "transformer/training/checkpoints/checksums.py": (
        "tests/faults/test_damaged_checkpoints.py",
        {
            "even_weights": ("(place * jnp.uint32(m) | 1)", "(place * jnp.uint32(m) + 2)"),
            "places_of_one_axis": ("place = place * jnp.uint32(size) + ", "place = "),
            "one_half_twice": ("for m in MULTIPLIERS])", "for m in (2, 2)])"),
            "only_small_words": ("uint{8 * min(width, 4)}", "uint{8 * min(width, 2)}"),
        },
    ),
    "transformer/training/checkpoints/untrusted.py": (
        "tests/faults/test_damaged_checkpoints.py tests/faults/test_hostile_checkpoints.py",
        {
            "folders_may_be_links": ("if path.is_symlink() or not path.is_dir():", "if not path.is_dir():"),
            "files_are_not_checked": ("check_run_file(path, is_read=not in_parts)", "pass"),
            "any_size_of_files": ("is_read=not in_parts", "is_read=False"),
            "no_large_chunks": ("is_read=not in_parts", "is_read=True"),
            "any_size_of_chunks": ("if math.prod(chunks) > (", "if False and math.prod(chunks) > ("),
            "errors_of_orbax_pass": (
                "        refuse(folder, error)\n",
                "        refuse(folder, error) if isinstance(error, OSError) else None\n",
            ),
        },
    ),
    "transformer/training/checkpoints/checkpoint.py": (
        "tests/training/checkpoints/test_checkpoint.py tests/faults/test_damaged_checkpoints.py "
        "tests/faults/test_hostile_checkpoints.py",
        {
            "metrics_of_any_form": ("dict(json.loads(file.read_bytes()))", "json.loads(file.read_bytes())"),
            "raw_parameters": (
                'name = "params" if stored.get("ema") is None else "ema"',
                'name = "params"',
            ),
            "worst_is_best": (
                "return value if name != self.keep_best else -value",
                "return -value if name != self.keep_best else value",
            ),
            "nan_is_best": (
                "if math.isfinite(value) else None",
                "if name in (metrics or {}) else None",
            ),
            "what_is_measured_later_is_left_out": ("return self._add(step, measured)", "return"),
            "shapes_not_compared": (
                "if (saved := arrays(stored)) != (expected := arrays(abstract)):",
                "if (saved := arrays(stored)).keys() != (expected := arrays(abstract)).keys():",
            ),
            "checksums_not_compared": ("and checksum != sums.get(name)", "and False"),
        },
    ),
    "transformer/training/parallel.py": (
        "tests/training/test_parallel.py",
        {
            "all_replicated": (
                "if shape == leaf.shape or _has_rows_of(leaf.shape, shape, owner):",
                "if shape == leaf.shape and False:",
            ),
            "tokens_not_cut": ("axes = 2 if len(shape) > 1", "axes = 2 if len(shape) > 9"),
            "indivisible_accepted": ("        if size % ways:", "        if size < ways:"),
        },
    ),
    "transformer/training/extras/measured.py": (
        "tests/training/extras/test_measured.py",
        {
            "squares_of_norms": ("Sum.of(jnp.sqrt(square))", "Sum.of(square)"),
            "first_layer_everywhere": ("+ squares_n[i]", "+ squares_n[0]"),
            "every_step_measured": ("is_due(self._every, self.done)", "True"),
            "a_step_too_late": ("        self.done += 1\n        return", "        return"),
        },
    ),
    "transformer/training/optim/layerwise.py": (
        "tests/training/optim/test_layerwise.py",
        {
            "all_layers_are_one_array": ('if group == "others" else', "if group else"),
            "stacks_of_any_depth_together": ('f"layers_{leaf.shape[0]}"', 'f"layers_{leaf.ndim}"'),
        },
    ),
    "transformer/training/optim/optax_optimizers.py": (
        "tests/training/optim/test_layerwise.py",
        {"one_is_missing": ('    "adafactor": functools.partial(by_layer, optax.adafactor),\n', "")},
    ),
    "transformer/training/optim/cautious.py": (
        "tests/training/optim/test_cautious.py",
        {
            "bold": ("(update * gradient < 0)", "(update * gradient != 0)"),
            "reckless": ("(update * gradient < 0)", "(update * gradient > 0)"),
            "share_over_layers": (
                "range(roles(path).is_stacked, agrees.ndim)",
                "range(agrees.ndim)",
            ),
            "no_cautious_decay": (
                "        if not decay:\n            return careful",
                "        if True:\n            return careful",
            ),
        },
    ),
    "transformer/training/optim/roles.py": (
        "tests/training/optim/test_roles.py tests/training/optim/test_optax_optimizers.py",
        {
            "gates_as_columns": ('(LAYERS, "expert", "gates", "depth")', '(LAYERS, "expert", "depth")'),
            "hidden_states_not_matrices": ("self.is_stacked or HIDDEN in self.names", "self.is_stacked"),
            "heads_as_matrices": ("(self.is_stacked or HIDDEN in self.names)", "True"),
            "heads_apart": ('if name == "head_dim" and i and', "if False and"),
            "tables_as_matrices": (" and names[axes[0][0]] not in LOOKED_UP", ""),
            "counts_what_others_take": ("None if setting.rule or setting.frozen is True else param", "param"),
            "any_axes_are_a_matrix": ("if len(axes) > 2:", "if len(axes) > 9:"),
        },
    ),
    "transformer/training/optim/rules.py": (
        "tests/training/optim/test_rules.py",
        {
            "positions_of_every_layer_below": (r'r"^(?!.*blocks/)(.*/)?(cls', r'r"(^|/)(cls'),
        },
    ),
    "transformer/training/optim/parametrization.py": (
        "tests/training/optim/test_parametrization.py",
        {
            "logits_begin_as_large": ("min(1.0, math.sqrt(outside / inside))", "1.0"),
            "steps_of_outputs_as_wide": ('{"adam": 1 / inside,', '{"adam": 1 / math.sqrt(inside),'),
            "gradients_do_not_shrink": ('"sgd": outside / inside', '"sgd": 1 / inside'),
            "muon_twice": ("muon_factor(n / inside, m / outside, rms) / ", ""),
            "embeddings_scaled_twice": (
                '{"adam": -0.5, "sgd": -1.0}[kind]',
                '{"adam": 0.0, "sgd": 0.0}[kind]',
            ),
            "depth_only_at_the_end": ("step *= model.depth ** (model.depth_exponent - 1)", "pass"),
            "depth_twice_at_first": ("** (0.5 - model.depth_exponent)", "**-model.depth_exponent"),
            "decay_shrinks": ("p if s.step == 1 else p / s.step", "p"),
            "muon_for_all": ('if kind == "muon" and not role(box.names).is_hidden:', "if False:"),
        },
    ),
    "transformer/training/extras/stages.py": (
        "tests/training/extras/test_stages.py",
        {
            "rows_read_again": ("place += (stage.end - stage.first) * stage.rows", "pass"),
            "places_of_the_whole_run": (" - stage.first * stage.rows\n", "\n"),
            "end_too_late": ("if done < stage.end", "if done <= stage.end"),
            "begins_at_another_row": ("row - before)", "row)"),
            "documents_not_cut": ("numbers[max(first - 1, 0) :]", "numbers"),
            "never_cut": ("yield self._cut(batch, length) if length else batch", "yield batch"),
            "one_rate": (" / len(self._counted)", " / 2"),
            "first_step_counted": (
                "        if not first:\n            self._counted",
                "        if True:\n            self._counted",
            ),
            "window_never_ends": ("        self._counted = []\n        return", "        return"),
            "mean_of_rates": (
                "sum(count / rate for count, rate in zip(tokens, rates, strict=True))",
                "(sum(tokens) / (sum(rates) / len(rates)))",
            ),
            "memory_of_the_first": ("self._stage is not before and", "False and"),
        },
    ),
    "transformer/training/extras/stage_config.py": (
        "tests/training/extras/test_stages.py",
        {
            "end_is_included": ("if first < end)", "if first <= end)"),
            "ends_as_given": ("name: sorted((int(step)", "name: list((int(step)"),
            "rows_of_all_steps": ("max(0, min(end, step) - stage.first)", "(end - stage.first)"),
        },
    ),
    "transformer/models/transforms/windowed.py": (
        "tests/models/transforms/test_windowed.py",
        {
            "wider_too": ("kind.pattern_size <= size", "False"),
            "full_stays": ('("full", "window")', '("window",)'),
            "dilation": ('(kind.pattern == "window" and kind.pattern_extra > 1)', "False"),
            "others_lose_their_keys": ("{**config.layer_kinds[name], **keys}", "{**keys}"),
        },
    ),
    "transformer/models/transforms/mup.py": (
        "tests/training/optim/test_parametrization.py tests/commands/test_coordinate_check.py",
        {
            "keys_of_one_head_grow": ("1.0 if c.num_kv_heads == 1 else width / head", "width / head"),
            "latents_of_heads": ("width if c.latent_dim else head", "width"),
            "scores_by_the_root": ('growth(c)["head_dim"] ** -0.5', "1.0"),
            "logits_of_scaled_tables": ("(-0.5 if c.scale_embeddings else -1.0)", "-1.0"),
            "heads_and_their_width": ('"num_heads" if more_heads else "head_dim"', '"num_heads"'),
        },
    ),
}
