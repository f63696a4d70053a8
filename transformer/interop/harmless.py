"""Which keys of config.json cannot change the function of a model, although its family does not have them.

Published files have keys of the programs that wrote them. Such a key is known to be harmless if

1. its value is off: null, false, 0 or empty, so that what it names is not there; `ON` has the exceptions;
2. or its name is in `NAMES`, or matches `FORMS`.

No class of transformers that belongs to a family computes with such a name: tests/interop/test_config_keys.py
compares them with what these classes read. Any other key may mean something to the code that trained the
model, and is refused by name.
"""

import re
from typing import Any


def words_of(names: str) -> frozenset[str]:
    """The names in a text, which spaces separate."""
    return frozenset(names.split())


COMMON = words_of(
    "architectures model_type transformers_version dtype torch_dtype use_cache initializer_range "
    "_name_or_path name_or_path task_specific_params id2label label2id num_labels problem_type prefix "
    "finetuning_task return_dict output_attentions output_hidden_states gradient_checkpointing "
    "bos_token_id eos_token_id pad_token_id sep_token_id tokenizer_class chunk_size_feed_forward "
    "is_decoder is_encoder_decoder"
)
"""Keys of any config.json that say nothing about the function that the model computes."""

GENERATION = words_of(
    "decoder_start_token_id forced_eos_token_id bad_words_ids max_length min_length do_sample early_stopping "
    "num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences output_scores "
    "return_dict_in_generate remove_invalid_values suppress_tokens max_new_tokens renormalize_logits"
)
"""Keys of older config.json files that say how text is generated; they change the model not at all."""

ON = words_of("forced_bos_token_id is_causal")
"""Keys whose value says something when it is off: a token, and what transformers takes for true."""

NAMES = GENERATION | words_of(
    # Who made the file, when, and by what.
    "_commit_hash _model_name_or_path author created_date is_llama_config language license model_name "
    "tokenizer_name transformers.js_config unsloth_fixed "
    # How it is computed: kernels, precision, outputs.
    "_attn_implementation _attn_implementation_autoset _attn_implementation_internal _flash_attn_2_enabled "
    "attn_implementation bf16 fp16 fp32 output_past tf_legacy_loss torchscript use_bfloat16 use_flash_attn "
    "use_flash_attention_2 xla_device "
    # What it was trained on, and how long its texts were.
    "condition_on_chain condition_on_species max_seq_len max_seq_length max_sequence_length model_max_length "
    "predict_special_tokens seq_length "
    # Classes, and what other libraries make of the logits.
    "_num_labels sbert_ce_default_activation_function sentence_transformers"
)
"""Names of keys without effect on the function, by what they are about; or on texts that are written."""

FORMS = re.compile(
    r".*_version"  # of a program
    r"|.*(dropout|pdrop)(_rate|_prob|_p)?"  # of training alone
    r"|(bos|eos|pad|sep|cls|mask|unk)_token(_ids?)?"  # which token stands for what
)
"""The forms of further such names."""


def is_harmless(name: str, value: Any) -> bool:
    """Whether a key that a family does not have cannot change the function, by the rule above."""
    return name in NAMES or bool(FORMS.fullmatch(name)) or (_is_off(value) and name not in ON)


def _is_off(value: Any) -> bool:
    """Whether a value of JSON is null, false, 0 or empty; or an object that has only such values."""
    return all(map(_is_off, value.values())) if isinstance(value, dict) else not value
