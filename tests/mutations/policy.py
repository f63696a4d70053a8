"""Mutations of `experiments/policy`: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "experiments/policy/divergences.py": (
        "tests/experiments/test_divergences.py",
        {
            "no_weights": ("jnp.exp(log_p) * (log_p - log_q)", "(log_p - log_q)"),
            "turned": ("    return kl(log_q, log_p)", "    return kl(log_p, log_q)"),
            "even": ("return beta * kl(log_q, log_m) + (1 - beta)", "return 0.5 * kl(log_q, log_m) + 0.5"),
            "other_mean": (
                "log_q + jnp.log(beta), log_p + jnp.log1p(-beta)",
                "log_p + jnp.log(beta), log_q + jnp.log1p(-beta)",
            ),
        },
    ),
    "experiments/policy/distillation.py": (
        "tests/test_distillation_run.py",
        {
            "no_temperature": (
                "logits_btv.astype(jnp.float32) / c.temperature)",
                "logits_btv.astype(jnp.float32))",
            ),
            "no_square": ("c.temperature**2 * loss_bt", "c.temperature * loss_bt"),
            "any_tokenizer": (
                "if tokenizer.content != (own := self.data.tokenizer).content:",
                "if (own := self.data.tokenizer) is None:",
            ),
            "any_length": (
                "(most := theirs.model.max_length) < (length",
                "(most := theirs.model.max_length) < 0 * (length",
            ),
            "unmeasured": ('sums | model_terms(sown, len(batch["tokens"]), {})', "sums"),
            "late_errors": ("            _ = self.teacher  #", "            pass  #"),
            "a_teacher_that_may_change": (
                "        if config.teacher:\n",
                "        if not config.teacher:\n",
            ),
        },
    ),
    "experiments/policy/taught_step.py": (
        "tests/test_distillation_run.py",
        {
            "never_drawn": ("< e.config.rollout.share", "< 0 * e.config.rollout.share"),
            "always_drawn": ("        if drawn:\n", "        if True:\n"),
            "prompts_too": ("= learned[1:]", "= 1"),
            "a_constant": (
                "with self.experiment.taught_by(teacher):",
                "with self.experiment.taught_by(self.teacher):",
            ),
            "measured_without": (
                "step.done, self._taught)",
                "step.done, lambda step: lambda *x: step(*x[:2]))",
            ),
        },
    ),
    "experiments/policy/estimators.py": (
        "tests/experiments/test_estimators.py",
        {
            "no_mean": ("return rewards_pn - rewards_pn.mean(axis=1, keepdims=True)", "return rewards_pn"),
            "over_all_prompts": ("std_p1 = rewards_pn.std(axis=1", "std_p1 = rewards_pn.std(axis=0"),
            "equal_rewards_are_noise": ("equal_p1 = std_p1 <= NO_SPREAD *", "equal_p1 = std_p1 < 0 *"),
            "all_tokens_alike": (
                "return standardized(rewards_pn), 1 / counts_pn,",
                "return standardized(rewards_pn), 1 + 0 / counts_pn,",
            ),
            "by_the_length": ("np.full(counts_pn.shape, float(longest))", "counts_pn.astype(float)"),
            "with_itself": ("(n / (n - 1))", "1"),
            "by_answers": (
                "np.ones(counts_pn.shape), counts_pn.astype(float)",
                "np.ones(counts_pn.shape), np.ones(counts_pn.shape)",
            ),
            "optimistic": ("return jnp.minimum(ratio * advantages", "return jnp.maximum(ratio * advantages"),
            "one_bound": ("jnp.clip(ratio, 1 - low, 1 + high)", "jnp.clip(ratio, 1 - low, 1 + low)"),
            "k1": ("return jnp.expm1(log_q - log_p) - (log_q - log_p)", "return log_p - log_q"),
        },
    ),
    "experiments/policy/arithmetic.py": (
        "tests/experiments/test_rewards.py",
        {
            "sums_first": (
                'return chain("+-", lambda: chain("*/", atom))',
                'return chain("*/", lambda: chain("+-", atom))',
            ),
            "from_the_right": ("name, right = tokens.pop(), part()", "name, right = tokens.pop(), total()"),
            "an_open_parenthesis": ('or tokens.pop() != ")"', 'and tokens.pop() != ")"'),
            "more_after_it": ("    if tokens:\n", "    if False:\n"),
            "of_any_length": ("if len(text) <= LONGEST else []", "if text else []"),
            "other_digits": ("if not token.isascii() or not token.isdecimal():", "if not token.isdecimal():"),
            "lower_median": ("sorted(values)[len(values) // 2]", "sorted(values)[(len(values) - 1) // 2]"),
            "no_remainder": ("sum(values) % 10", "sum(values)"),
            "several_values": (
                "if len(stack) != 1 or len(stack[0]) != 1:",
                "if len(stack) != 1 or not stack[0]:",
            ),
        },
    ),
    "experiments/policy/rewards.py": (
        "tests/experiments/test_rewards.py",
        {
            "case_counts": ("text.casefold().split()", "text.split()"),
            "the_first_number": ("numbers[-1].replace", "numbers[0].replace"),
            "any_part": ("re.fullmatch(pattern", "re.match(pattern"),
            "by_digits": ("sorted(numbers, key=int)", "sorted(numbers)"),
            "any_number_of_numbers": ("if len(numbers) != len(written):", "if len(numbers) < len(written):"),
            "used_again": ("and Counter(used) <= Counter(numbers)", "and set(used) <= set(numbers)"),
            "any_value": ("float(value == target and", "float(value != None and"),
            "not_finite": ("if not math.isfinite(number):", "if False:"),
            "calls_in_any_order": (
                '[*calls_in(answer)] == [*calls_in(json.dumps(record["tool_calls"]))]',
                '{*calls_in(answer)} == {*calls_in(json.dumps(record["tool_calls"]))}',
            ),
            "nothing_equals_nothing": ('if not record["answer"]:', "if False:"),
            "too_many_digits": (
                "    except ValueError:  # Python reads",
                "    except KeyError:  # Python reads",
            ),
        },
    ),
    "experiments/policy/called.py": (
        "tests/experiments/test_rewards.py",
        {
            "calls_within_calls": ("end if is_call else start + 1", "start + 1"),
            "a_call_without_a_name": (
                'is_call = keys and isinstance(value.get("name"), str)',
                "is_call = keys",
            ),
            "of_most_templates": ('ARGUMENTS = ("arguments", "parameters")', 'ARGUMENTS = ("arguments",)'),
            "as_a_text": ("if isinstance(arguments, str):", "if False:"),
            "by_order_of_keys": ("sort_keys=True", "sort_keys=False"),
            "floats_differ": ("parse_float=_number", "parse_float=float"),
            "too_deep": ("except (ValueError, RecursionError):", "except ValueError:"),
        },
    ),
    "experiments/policy/rollouts.py": (
        "tests/test_grpo_run.py",
        {
            "of_the_next_token": (
                "return put(drawn, state, before.index",
                "return put(drawn, before, before.index",
            ),
            "without_temperature": ("astype(jnp.float32) / temperature)", "astype(jnp.float32))"),
            "after_its_end": ("before.index, ~before.done_b)", "before.index, before.done_b | True)"),
            "targets_are_inputs": ("tokens[:n], tokens[1:]", "tokens[:n], tokens[:-1]"),
            "another_prompt_in_each_row": ("+ needed // self.samples", "+ needed"),
            "no_second_update": ("places = step // self.updates *", "places = step *"),
            "numbered_by_place": (
                "= record = int(self._records[row])",
                "= record = int(self._records[row - 1])",
            ),
        },
    ),
    "experiments/policy/rollout_step.py": (
        "tests/test_grpo_run.py",
        {
            "each_step_draws": ("% self.experiment.config.rollout.updates == 0", "% 1 == 0"),
            "blank_after_a_fork": (" or is_blank(state.carry)", ""),
            "always_the_same": (
                "jax.random.fold_in(jax.random.key(e.config.seed), state.step)",
                "jax.random.key(e.config.seed)",
            ),
            "one_answer": (
                '(rng, jnp.arange(len(rows["records"])))',
                '(rng, 0 * jnp.arange(len(rows["records"])))',
            ),
            "one_place_later": (
                "here = np.s_[i, length - 1 : length - 1 + n]",
                "here = np.s_[i, length : length + n]",
            ),
            "the_reference_is_the_policy": ("self._log_p(e.reference, placed)", 'rows["sampled"] - 1'),
            "the_end_is_text": ("ids = ids[:-1] if ids[-1] in e.ends else ids", "ids = ids"),
        },
    ),
    "experiments/policy/grpo.py": (
        "tests/test_grpo_run.py",
        {
            "no_temperature": ("logits_btv / self.config.rollout.temperature", "logits_btv"),
            "descends": ("loss_bt = -clipped(", "loss_bt = clipped("),
            "padding_overflows": ("log_p_bt = jnp.where(drawn_bt, log_p_bt, 0.0)", "pass"),
            "away_from_the_reference": ("loss_bt += c.kl", "loss_bt -= c.kl"),
            "clipped_alike": ("c.clip_high or HIGHER.get(c.estimator, c.clip)", "c.clip_high or c.clip"),
            "not_a_multiple": ("if size % r.samples:", "if False:"),
            "dropout": ("if rate := vars(self.model)[key]:", "if rate := 0:"),
            "the_end_of_a_prompt": ("tokens[-most:] for", "tokens[:most] for"),
        },
    ),
    "experiments/evaluation/mean_reward.py": (
        "tests/test_grpo_run.py",
        {
            "not_to_be_minimised": ('"loss": 0.0 - means', '"loss": means'),
            "of_all": (
                "most = e.config.train.evaluate_batches * e.batch_size() or len(source)",
                "most = len(source)",
            ),
            "any_name": ("if name not in REWARDS:", "if False:"),
            "the_best_is_the_mean": ("max(rewards_s))", "np.mean(rewards_s))"),
            "of_one_answer": ("[: experiment.config.sample.num_samples]", "[:2]"),
        },
    ),
    "transformer/data/sources/embedded/problems.py": (
        "tests/experiments/test_rewards.py",
        {
            "in_several_splits": ("if falls_in(self._split, prompt.encode()):", "if True:"),
            "no_parentheses": ('f"({text})" if operator == "*" and i > 1 else text', "text"),
            "of_any_size": ("2 <= int(size) <= LARGEST", "0 <= int(size)"),
            "of_words": ("sorted(numbers)))", "sorted(map(str, numbers))))"),
        },
    ),
}
