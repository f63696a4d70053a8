"""Mutations of mixers with a state, and of gated attention: file -> (tests, {name: (text, replacement)})."""

FILE = "tests/layers/test_state_mixers.py"
EQUATIONS = f"{FILE}::test_outputs_and_states_are_those_of_the_equations"
GRADIENTS = f"{FILE}::test_all_gradients_are_those_of_the_equations"
PARTS = f"{FILE}::test_any_parts_of_packed_rows_are_the_whole"
LONG = f"{FILE}::test_65536_tokens_with_decays_near_0_and_1"
PAPERS = f"{FILE}::test_convolutions_and_key_heads_are_those_of_the_papers"
REFUSED = f"{FILE}::test_what_mixers_do_not_have_is_refused"
MIXERS = "transformer/layers/mixers"


EDITS = {
    f"{MIXERS}/chunked_state.py": (
        f"tests/layers/test_triangular_systems.py {EQUATIONS} {PARTS} {LONG}",
        {
            "added_below_the_diagonal": ("below_nhh = -product(", "below_nhh = product("),
            "halves_in_another_order": (
                "inverse_nhh[::2], inverse_nhh[1::2]",
                "inverse_nhh[1::2], inverse_nhh[::2]",
            ),
            "documents_are_one": (
                "chunks(positions_bt == 0), axis=2",
                "0 * chunks(positions_bt == 0), axis=2",
            ),
            "the_state_stays": (
                "_since(log_decay_tk) * (document_t == 0)[:, None]",
                "_since(log_decay_tk)",
            ),
            "all_documents_are_kept": ("* (document_t == document_t[-1])[:, None]", "* 1.0"),
            "documents_see_one_another": ("jnp.where(same_ts, products", "jnp.where(True, products"),
            "nothing_is_taken_from_the_state": (
                "chunk.value - chunk.weight @ state_bhkv",
                "chunk.value + 0 * chunk.weight @ state_bhkv",
            ),
            "the_state_is_not_decayed": ("return chunk.decay * state_bhkv", "return state_bhkv"),
            "removed_at_the_keys": (
                "pairs(erase_tk, k_tk if remove_tk is None else remove_tk)",
                "pairs(erase_tk, k_tk)",
            ),
            "its_own_value_is_read": (
                "jnp.tril(pairs(erase_tk, k_tk), -1)",
                "jnp.tril(pairs(erase_tk, k_tk))",
            ),
            "what_is_read_is_added": ("[value_sv, -u_tv]", "[value_sv, u_tv]"),
            "keys_swapped": ("keys, value_sv = [k_tk, remove_tk],", "keys, value_sv = [remove_tk, k_tk],"),
            "one_decay_too_many": (
                "jnp.tri(len(log_decay_tk), k=-1, dtype=bool)[..., None]",
                "jnp.tri(len(log_decay_tk), k=0, dtype=bool)[..., None]",
            ),
            "no_decay_since": (
                "return jnp.exp(_running(log_decay_tk))",
                "return jnp.exp(0 * _running(log_decay_tk))",
            ),
            "blocks_do_not_decay": ("(x_tk[at] * since_mk) @", "x_tk[at] @"),
            "earlier_blocks_do_not_decay": ("(y_sk[: at.start] * until_sk).T", "y_sk[: at.start].T"),
            "its_own_decay_after": ("1 - jnp.tri(len(log_decay_tk))", "1 - jnp.tri(len(log_decay_tk), k=-1)"),
        },
    ),
    f"{MIXERS}/differential.py": (
        "tests/layers/attention/test_differential.py",
        {
            "added": ("first_bthk - share * second_bthk", "first_bthk + share * second_bthk"),
            "all_layers_as_the_first": ("if mask.layer is None else", "if True else"),
            "vectors_swapped": (
                "jnp.exp(a_k @ b_k) - jnp.exp(c_k @ d_k)",
                "jnp.exp(a_k @ d_k) - jnp.exp(c_k @ b_k)",
            ),
            "not_rescaled": ("(1 - start) * normal_bthk", "normal_bthk"),
            "scaled_by_whole_heads": ("return self.rotary_width**-0.5", "return self.head_dim**-0.5"),
            "shifted_as_whole_heads": ("k_bsgk = halves(cache", "k_bsgk = (lambda x: x)(cache"),
            "keys_not_normalised": ("self.key_norm(k_bsgk) if self.qk_norm", "k_bsgk if self.qk_norm"),
            "queries_not_normalised": ("self.query_norm(q_bthk) if self.qk_norm", "q_bthk if self.qk_norm"),
            "values_of_one_half": ("[v_bsgk, v_bsgk]", "[v_bsgk, 0 * v_bsgk]"),
            "products_of_whole_heads": ("return 3 * self.num_heads", "return 2 * self.num_heads"),
            "draws_as_whole_heads": ("return 2 * self.num_kv_heads", "return self.num_kv_heads"),
            "odd_heads": ("if self.head_dim % 2:", "if False:"),
            "positions_of_whole_heads": (
                "heads_of_width: ClassVar[bool] = False",
                "heads_of_width: ClassVar[bool] = True",
            ),
        },
    ),
    f"{MIXERS}/state_mixer.py": (
        f"{PAPERS} {EQUATIONS}",
        {
            "longer_than_1": ("keepdims=True) + 1e-6", "keepdims=True) + 1e-2"),
            "activation_lost": ("x_btd = activation(down(x_btd))", "x_btd = down(x_btd)"),
            "biases_lost": (
                "functools.partial(Linear, use_bias=self.use_bias,",
                "functools.partial(Linear, use_bias=False,",
            ),
        },
    ),
    f"{MIXERS}/convolved_state.py": (
        f"{EQUATIONS} {PARTS} {REFUSED}",
        {
            "documents_are_convolved": ("jnp.where(position >= j,", "jnp.where(position >= 0,"),
            "one_token_less": ("jnp.where(position >= j,", "jnp.where(position > j,"),
            "taps_reversed": ("y += kernel[j] *", "y += kernel[first] *"),
            "old_tail": ("inputs[:, t:]", "inputs[:, : self.width - 1]"),
            "no_activation": ("jax.nn.silu(y).astype", "y.astype"),
            "heads_in_turn": (
                "jnp.repeat(x.astype(jnp.float32), self.num_heads // self.key_heads, axis=2)",
                "jnp.tile(x.astype(jnp.float32), (1, 1, self.num_heads // self.key_heads, 1))",
            ),
            "any_number_of_key_heads": ("if self.num_heads % self.key_heads:", "if False:"),
            "no_step_bias": ("jax.nn.softplus(x + self.vector(", "jax.nn.softplus(x + 0 * self.vector("),
            "rates_are_logarithms": ('jnp.exp(self.vector("log_rate"', '(self.vector("log_rate"'),
        },
    ),
    f"{MIXERS}/delta.py": (
        f"{EQUATIONS} {GRADIENTS}",
        {
            "no_negative_eigenvalues": (
                "2.0 if self.negative_eigenvalues",
                "1.0 if self.negative_eigenvalues",
            ),
            "strong": ("jax.nn.sigmoid(self.per_head", "jax.nn.softplus(self.per_head"),
            "long_keys": (", unit(k_bthk)", ", k_bthk"),
            "long_queries": ("unit(q_bthk) *", "q_bthk *"),
            "keys_are_not_weighed": ("strength_bth[..., None] * k_bthk", "k_bthk"),
            "no_norm": ("return self.output_norm(out_bthv)", "return 1.1 * self.output_norm(out_bthv)"),
        },
    ),
    f"{MIXERS}/gated_delta.py": (
        EQUATIONS,
        {
            "growth": ("return -(self.rates()", "return (self.rates()"),
            "no_rate": ("-(self.rates() *", "-(0 * self.rates() + 1 *"),
            "sigmoid_gate": ("jax.nn.silu(gate_bthv)", "jax.nn.sigmoid(gate_bthv)"),
        },
    ),
    f"{MIXERS}/kimi_delta.py": (
        EQUATIONS,
        {
            "no_rate": ("-self.rates()[:, None] *", "-(0 * self.rates() + 1)[:, None] *"),
            "silu_gate": ("jax.nn.sigmoid(gate_bthv)", "jax.nn.silu(gate_bthv)"),
        },
    ),
    f"{MIXERS}/gated_linear.py": (
        f"{PAPERS} {EQUATIONS}",
        {
            "no_temperature": (
                "jax.nn.log_sigmoid(logits_bthk) / TEMPERATURE",
                "jax.nn.log_sigmoid(logits_bthk)",
            ),
            "no_bias": ("logits_bthk += self", "logits_bthk += 0 * self"),
            "queries_not_scaled": ("Tokens(q_bthk * self.head_dim**-0.5,", "Tokens(q_bthk,"),
            "convolved": ("own_conv_width: ClassVar[int] = 1", "own_conv_width: ClassVar[int] = 2"),
            "sigmoid_gate": ("jax.nn.silu(gate_bthv)", "jax.nn.sigmoid(gate_bthv)"),
        },
    ),
    f"{MIXERS}/mamba2.py": (
        f"{PAPERS} {EQUATIONS}",
        {
            "values_are_not_scaled": ("step_bth[..., None] * v_bthv,", "v_bthv,"),
            "no_skip": ("out_bthv + skip_h[:, None] * v_bthv", "out_bthv + 0 * skip_h[:, None] * v_bthv"),
            "a_norm_of_each_head": (".reshape(*out_bthv.shape[:2], -1)", ".reshape(*out_bthv.shape)"),
            "no_conv_bias": ("conv_bias: ClassVar[bool] = True", "conv_bias: ClassVar[bool] = False"),
            "key_heads": ("self.num_key_heads or 1", "self.num_key_heads or self.num_heads"),
        },
    ),
    f"{MIXERS}/rwkv7.py": (
        f"{EQUATIONS} {PARTS}",
        {
            "documents_are_shifted": ("positions_bt[..., None] > 0", "positions_bt[..., None] >= 0"),
            "read_behind_the_decay": ("erase_bthk * jnp.exp(-log_decay_bthk)", "erase_bthk"),
            "rates_forgotten": ("reading_bthk, rate_bthk * erase_bthk", "reading_bthk, erase_bthk"),
            "replacement": ("1 + (rate_bthk - 1) * replaced_hk", "rate_bthk * replaced_hk"),
            "own_values": ("v_bthk + share_bthk * (first_bthk - v_bthk)", "v_bthk + 0 * share_bthk"),
            "decay": ("-math.exp(-0.5)", "-math.exp(0.5)"),
            "no_centre": ("out_bthk - jnp.mean(out_bthk, axis=-1, keepdims=True)", "out_bthk + 0.0"),
            "no_bonus": ("jnp.sum(q_bthk * bonus_hk * k_bthk,", "jnp.sum(0 * bonus_hk * k_bthk,"),
            "an_earlier_token": ('{"input": inputs_btd[:, -1:]}', '{"input": inputs_btd[:, :1]}'),
            "no_tanh": ('x["decay"], jnp.tanh)', 'x["decay"])'),
        },
    ),
    f"{MIXERS}/gated.py": (
        "tests/layers/attention/test_gated.py",
        {
            "silu": ("jax.nn.sigmoid(gate_bthk)", "jax.nn.silu(gate_bthk)"),
            "gates_are_queries": ("q_bthk, gate_bthk = jnp", "gate_bthk, q_bthk = jnp"),
        },
    ),
}
