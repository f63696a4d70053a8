"""Models of Hugging Face transformers, in and out: one table of keys and tensors per family."""

from transformer.interop.families.arcee import ARCEE
from transformer.interop.families.bart import BART
from transformer.interop.families.encoders.bert import (
    BERT,
    BERT_BARE,
    BERT_CLASSIFIER,
    BERT_PRETRAINING,
    BERT_SPAN,
)
from transformer.interop.families.encoders.distilbert import (
    DISTILBERT,
    DISTILBERT_BARE,
    DISTILBERT_CLASSIFIER,
    DISTILBERT_SPAN,
)
from transformer.interop.families.encoders.modernbert import (
    MODERNBERT,
    MODERNBERT_BARE,
    MODERNBERT_CLASSIFIER,
)
from transformer.interop.families.encoders.mpnet import MPNET, MPNET_BARE, MPNET_CLASSIFIER, MPNET_SPAN
from transformer.interop.families.encoders.roberta import (
    ROBERTA,
    ROBERTA_BARE,
    ROBERTA_CLASSIFIER,
    ROBERTA_SPAN,
    XLM_ROBERTA,
    XLM_ROBERTA_BARE,
    XLM_ROBERTA_CLASSIFIER,
    XLM_ROBERTA_SPAN,
)
from transformer.interop.families.encoders.vit import VIT, VIT_BARE
from transformer.interop.families.gemma import GEMMA2, GEMMA3
from transformer.interop.families.gpt2 import GPT2
from transformer.interop.families.gpt_neox import GPT_NEOX
from transformer.interop.families.gpt_oss import GPT_OSS
from transformer.interop.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from transformer.interop.families.marian import MARIAN
from transformer.interop.families.mixtral import MIXTRAL, QWEN3_MOE
from transformer.interop.families.olmo2 import OLMO2
from transformer.interop.families.phi3 import PHI3
from transformer.interop.families.qwen3_next import QWEN3_NEXT
from transformer.interop.families.smollm3 import SMOLLM3
from transformer.interop.families.t5 import MT5, T5
from transformer.interop.family import Family

FAMILIES: dict[str, tuple[Family, ...]] = {
    "gpt2": (GPT2,),
    "llama": (LLAMA,),
    "mistral": (MISTRAL,),
    "qwen2": (QWEN2,),
    "qwen3": (QWEN3,),
    "mixtral": (MIXTRAL,),
    "qwen3_moe": (QWEN3_MOE,),
    "qwen3_next": (QWEN3_NEXT,),
    "smollm3": (SMOLLM3,),
    "olmo2": (OLMO2,),
    "phi3": (PHI3,),
    "gpt_neox": (GPT_NEOX,),
    "gpt_oss": (GPT_OSS,),
    "arcee": (ARCEE,),
    "gemma2": (GEMMA2,),
    "gemma3_text": (GEMMA3,),
    "bert": (BERT, BERT_PRETRAINING, BERT_CLASSIFIER, BERT_SPAN, BERT_BARE),
    "distilbert": (DISTILBERT, DISTILBERT_CLASSIFIER, DISTILBERT_SPAN, DISTILBERT_BARE),
    "roberta": (ROBERTA, ROBERTA_CLASSIFIER, ROBERTA_SPAN, ROBERTA_BARE),
    "xlm-roberta": (XLM_ROBERTA, XLM_ROBERTA_CLASSIFIER, XLM_ROBERTA_SPAN, XLM_ROBERTA_BARE),
    "mpnet": (MPNET, MPNET_CLASSIFIER, MPNET_SPAN, MPNET_BARE),
    "modernbert": (MODERNBERT, MODERNBERT_CLASSIFIER, MODERNBERT_BARE),
    "vit": (VIT, VIT_BARE),
    "t5": (T5,),
    "mt5": (MT5,),
    "marian": (MARIAN,),
    "bart": (BART,),
}
"""`model_type` in config.json -> its models, by their heads. Of several that can express a model the first is
exported."""
