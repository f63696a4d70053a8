"""Objectives, one file each, by the value of the key `experiment`."""

import pkgutil
from typing import Any

from transformer.errors import UnknownMember, suggest

EXPERIMENTS: dict[str, str | type] = {
    "language_modeling": "experiments.language_modeling:LanguageModeling",
    "transformer_xl": "experiments.transformer_xl:SegmentRecurrence",
    "sequence_to_sequence": "experiments.sequence_to_sequence:SequenceToSequence",
    "recurrent_sequence_to_sequence": "experiments.sequence_to_sequence:RecurrentPairs",
    "text_to_text": "experiments.text_to_text:TextToText",
    "chat": "experiments.chat:Chat",
    "dpo": "experiments.dpo:PreferenceOptimization",
    "grpo": "experiments.policy.grpo:PolicyOptimization",
    "distillation": "experiments.policy.distillation:Distillation",
    "word_embedding": "experiments.word_embedding:WordEmbedding",
    "masked_lm": "experiments.masked_lm:MaskedLanguageModeling",
    "electra": "experiments.denoising.electra:ReplacedTokenDetection",
    "diffusion_lm": "experiments.denoising.diffusion_lm:DiffusionLanguageModeling",
    "classification": "experiments.classification:Classification",
    "span_extraction": "experiments.span_extraction:SpanExtraction",
    "contrastive": "experiments.contrastive:Contrastive",
    "image_text": "experiments.contrastive:ImageText",
    "vision": "experiments.vision:Vision",
    "algorithmic": "experiments.algorithmic:Algorithmic",
    "in_context_regression": "experiments.in_context_regression:InContextRegression",
}
"""Name -> module and class, imported only when a run needs it; or the class itself, as of a notebook."""


def find_experiment(name: Any) -> Any:
    """The class of an experiment.

    Raises:
      UserError: unknown name.
    """
    if not isinstance(name, str) or name not in EXPERIMENTS:
        raise UnknownMember(f"config.experiment: {name!r} is not an experiment; {suggest(name, EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    return pkgutil.resolve_name(experiment) if isinstance(experiment, str) else experiment
