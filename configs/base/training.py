"""Every key of the groups that say how a run is trained, measured and used, with its default and meaning."""

from ml_collections import ConfigDict


def loss() -> ConfigDict:
    """What predicting a token of the vocabulary costs."""
    config = ConfigDict()
    config.name = "cross_entropy"  # a key of LOSSES in transformer/training/losses: focal, say
    config.label_smoothing = 0.0  # share of the target's mass that is spread over the vocabulary
    config.z_loss = 0.0  # coefficient of (log Z)^2, which keeps logits from drifting; 0: off
    config.chunk_size = 0  # positions whose logits are held at once, to save memory; 0: all
    config.arguments = ConfigDict()  # of the loss, further ones: --config.loss.arguments.gamma=1
    return config


def label_loss() -> ConfigDict:
    """Cross-entropy over labels."""
    config = ConfigDict()
    config.label_smoothing = 0.0  # share of the label's mass that is spread over all labels
    config.balance = False  # weigh examples so that every label counts the same, however often it occurs
    return config


def negative_sampling() -> ConfigDict:
    """Neighbours against noise."""
    config = ConfigDict()
    config.negatives = 5.0  # how many words of noise a neighbour is told from
    return config


def optimizer() -> ConfigDict:
    """An optimizer of optax with its learning rate."""
    config = ConfigDict()
    config.name = "adamw"  # any optimizer of optax, by optax's name: adam, sgd, lion, contrib.muon ...
    config.learning_rate = 1e-3  # the schedule's peak
    config.adam_learning_rate = 0.0  # the peak of what muon leaves to adam: tables, norms; 0: the same
    config.schedule = "cosine"  # constant, cosine, inverse_sqrt (the original), wsd (warm-up, stable, decay)
    config.warmup_steps = 100  # linear warm-up
    config.decay_steps = 0  # length of the decay of cosine (0: up to the last step) and wsd
    config.final_fraction = 0.1  # the learning rate that cosine and wsd end at, as a part of the peak
    config.weight_decay = 0.1  # decoupled, of matrices only
    config.clip_norm = 1.0  # longest gradient, in global norm; 0: off
    config.ema_decay = 0.0  # of a moving average of the parameters, to evaluate and predict with; 0: off
    config.layer_decay = 1.0  # of the learning rate, by every block further from the output
    config.frozen_layers = 0  # how many of the lowest blocks are not trained, nor what lies below them
    config.train_only = ""  # names of the only parameters to train: head,pooler or lora,head; "": all
    config.arguments = ConfigDict()  # of the optimizer, further ones: --config.optimizer.arguments.b2=0.95
    return config


def train() -> ConfigDict:
    """How long, and what happens on the way."""
    config = ConfigDict()
    config.steps = 1000  # updates in all
    config.batch_size = 16  # sequences a step, over all devices and microbatches
    config.evaluate_every = 0  # steps between evaluations; 0: only at the end
    config.evaluate_batches = 0  # batches of validation data; 0: all
    config.checkpoint_every = 0  # steps between checkpoints; 0: only at the end, and when stopped
    config.checkpoint_minutes = 10.0  # and when so long has passed since the last one; 0: not by time
    config.keep_last = 1  # how many checkpoints to keep, the newest ones
    config.average_last = 1  # evaluate and predict with the mean of so many last checkpoints' parameters
    config.keep_best = ""  # keep also the best by this metric, smaller is better ("-name": larger); "": none
    config.log_every = 10  # steps between values that are written down
    config.writers = "jsonl,tensorboard"  # keys of WRITERS, with commas between; "": values are not kept
    config.sample_every = 0  # steps between samples; 0: only at the end
    config.max_skipped = 20  # steps in a row with a gradient that is not finite, before giving up; 0: never
    config.profile_from = 10  # the step after which the profiler starts
    config.profile_steps = 0  # how many steps it records; 0: off
    return config


def evaluate() -> ConfigDict:
    """What evaluations measure besides the validation split, and in which batches."""
    config = ConfigDict()
    config.batch_size = 0  # rows that are evaluated at once, over all devices; 0: as many as in training
    config.also = ""  # further evaluators, with commas between: keys of EVALUATORS, experiments/evaluators.py
    config.sets = ConfigDict()  # further sources to measure, by name: --config.evaluate.sets.wiki=text:GLOB
    return config


def parallel() -> ConfigDict:
    """How the run is spread over devices."""
    config = ConfigDict()
    config.mesh = ConfigDict()
    config.mesh.data = -1  # devices with whole copies of the parameters; -1: all that are left
    config.mesh.fsdp = 1  # devices over which parameters and batch are cut
    config.mesh.tensor = 1  # devices over which heads, hidden units and vocabulary are cut
    config.mesh.context = 1  # devices over which each sequence is cut
    config.microbatches = 1  # parts of a batch, one after the other, with gradients added: saves memory
    config.rules = "default"  # logical axis -> mesh axis: a key of RULES in transformer/training/parallel.py
    return config


def sample() -> ConfigDict:
    """How text is completed; the flags of --mode=predict override these keys."""
    config = ConfigDict()
    config.prompt = "def "  # what the samples during and after training begin with
    config.max_new_tokens = 64  # longest completion
    config.temperature = 0.8  # 0: always the likeliest token
    config.top_k = 0  # sample from the k likeliest tokens; 0: from all
    config.top_p = 0.95  # sample from the likeliest tokens that hold this much of the mass; 1: from all
    config.min_p = 0.0  # sample from tokens with this share of the likeliest one's probability; 0: from all
    config.num_samples = 1  # completions of each prompt
    config.stop = []  # texts before the first of which a completion ends; []: only the end of text ends it
    return config


def generate() -> ConfigDict:
    """How a target is written: by beam search or by sampling, and what is measured of it; flags of
    --mode=predict override these keys."""
    config = ConfigDict()
    config.beam_size = 4  # hypotheses kept while searching; 1: greedy
    config.length_penalty = 0.6  # power of ((5 + length) / 6) by which log-likelihoods are divided; 0: none
    config.max_new_tokens = 128  # longest target
    config.extra_tokens = 0  # how much longer than its source a target may be (the original: 50); 0: any
    config.n_best = 1  # how many targets are written for each source, the best ones
    config.with_scores = False  # write each target's score and a tab before it
    config.temperature = 0.0  # 0: beam search; more: targets are drawn, by this and the next four keys
    config.top_k = 0  # sample from the k likeliest tokens; 0: from all
    config.top_p = 1.0  # sample from the likeliest tokens that hold this much of the mass; 1: from all
    config.min_p = 0.0  # sample from tokens with this share of the likeliest one's probability; 0: from all
    config.num_samples = 1  # targets that are sampled for each source
    config.stop = []  # texts before the first of which a target ends; []: only the end of text ends it
    config.batch_size = 16  # sources that are written from at once
    config.metric = "bleu"  # of targets, in evaluation: bleu,chrf,chrf++,rouge,exact_match, or none
    config.bleu_tokenizer = "13a"  # what BLEU's words are: 13a, intl, char, zh, ja-mecab, ko-mecab or none
    config.examples = 200  # validation pairs that are written for it; 0: all
    return config


def answer() -> ConfigDict:
    """How an answer is chosen, and how many are measured."""
    config = ConfigDict()
    config.max_tokens = 30  # longest answer
    config.n_best = 1  # how many answers predict writes to each question, the best ones
    config.allow_none = False  # whether an answer may be empty, where all windows say that they have none
    config.examples = 500  # validation questions that are answered for exact match and F1; 0: all
    return config
