"""Completion against a plain loop that reads all again for each token: batches, windows, early ends."""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from tests.decoding.test_incremental import FULL_EVERY_2, VOCAB, make
from tests.decoding.toy import Chain, chain, cycle
from tests.models import test_encoder_decoder as transformers
from tests.models import test_recurrent_encoder_decoder as recurrent
from tests.parameters import random_params
from transformer.decoding import completion, generation
from transformer.decoding.completion import ContextWindow, TextGenerator
from transformer.decoding.generation import advance, begin
from transformer.decoding.sampling import DecodingConfig, draw
from transformer.decoding.speculative import SpeculativePair
from transformer.models.decoder import DecoderStepper


@dataclasses.dataclass(frozen=True)
class Until(TextGenerator):
    """Ends where `over(prompt, new)` says so, without a tokenizer."""

    over: Callable = bool

    def has_stopped(self, text):
        return self.over(text.prompt, text.new)


def complete(model, prompts, rng, config, window, finished=None, **options):
    """The tokens that a generator completes prompts with."""
    if finished:
        options["over"], config = finished, dataclasses.replace(config, stop=("asked",))
    generator = Until(model, None, config, window, **options)
    return ([text.new for text in group] for group in generator.complete(prompts, rng))


def stream(model, prompt, rng, config, window):
    return TextGenerator(model, None, config, window).stream_tokens(prompt, rng)


def sampled(model, prompts, config, *, eos_id=0, longest=32, rolling=True, **options):
    reading = ContextWindow(eos_id, longest, rolling)
    return list(complete(model, prompts, jax.random.key(3), config, reading, **options))


@pytest.mark.thorough
def test_each_prompt_is_answered_in_order_whatever_the_batch(rng):
    model = chain(rng, 12)
    texts = [[0, *rng.integers(1, 12, rng.integers(0, 14)).tolist()] for _ in range(11)]
    config = DecodingConfig(max_new_tokens=6, temperature=0.9, num_samples=3)
    answers = sampled(model, texts, config)
    assert [len(samples) for samples in answers] == [3] * 11
    assert all(0 not in sample and len(sample) <= 6 for samples in answers for sample in samples)
    for batch_size in (5, 64):
        assert sampled(model, texts, config, batch_size=batch_size) == answers
    # A prompt's samples are the first that many of what it gives when more are asked for.
    fewer = sampled(model, texts, DecodingConfig(max_new_tokens=6, temperature=0.9, num_samples=2))
    assert fewer == [samples[:2] for samples in answers]


def test_greedy_is_brute_force(rng):
    model = chain(rng, 12)
    best = np.asarray(model.table_nv).argmax(-1)
    texts = [[0], [0, 5], [1, 2, 3]]
    for text, (sample,) in zip(
        texts, sampled(model, texts, DecodingConfig(max_new_tokens=7, temperature=0.0)), strict=True
    ):
        expected, last = [], text[-1]
        while len(expected) < 7 and best[last] != 0:
            last = best[last]
            expected.append(last)
        assert sample == expected


def test_prompts_are_taken_only_as_they_are_needed():
    taken = []

    def endless():
        for i in range(10**9):
            taken.append(i)
            yield [1]

    reading, config = ContextWindow(4, 9, True), DecodingConfig(max_new_tokens=2)
    next(complete(cycle(5), endless(), jax.random.key(0), config, reading, batch_size=4))
    assert len(taken) <= 4


@pytest.mark.thorough
def test_few_shapes_are_compiled(rng):
    model, before = chain(rng, 17), begin._cache_size() + advance._cache_size()
    texts = [[1] * (n + 1) for n in range(40)]
    sampled(model, texts, DecodingConfig(max_new_tokens=3), longest=128, batch_size=4)
    assert begin._cache_size() + advance._cache_size() - before <= 4


@struct.dataclass
class Watch(Chain):
    """Notes what is read at once, and in which order tokens follow."""

    seen: list = struct.field(pytree_node=False, default=None)

    def prefill(self, tokens_bt, lengths_b, room):
        jax.debug.callback(lambda *a: self.seen.append([np.asarray(x) for x in a]), tokens_bt, lengths_b)
        return super().prefill(tokens_bt, lengths_b, room)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_a_window_that_is_full_keeps_its_newer_half(window):
    """Of a prompt the last tokens, and of those that follow, as many as there is room for."""
    seen = []
    model = Watch(cycle(100).table_nv, seen=seen)
    config = DecodingConfig(max_new_tokens=30, temperature=0.0)
    (((first,), (second,))) = sampled(model, [[*range(40)], [7]], config, eos_id=99, longest=window)
    jax.effects_barrier()
    assert first == [*range(40, 70)] and second == [*range(8, 38)]
    views = [[row[:n].tolist() for row, n in zip(*each, strict=True)] for each in seen]
    assert views[0] == [[*range(40)][-window:], [7]]
    kept = max(window // 2, 1)
    # A window reads a view and all that follows until it is full; the token after that is not read in it.
    assert views[1][0] == [*range(41 - kept, 41)]
    if window < 30:
        assert views[1][1] == [*range(7, 7 + window + 1)][-kept:]
    for before, after in itertools.pairwise([each[0] for each in views[1:]]):
        assert len(after) == kept and after[-1] - before[-1] in (window + 1 - kept, 0)


def brute_force(one, prompt, config, window, rng, numbers, eos_id):
    """One token at a time, each from the whole view of it."""
    key = jax.random.fold_in(jax.random.fold_in(rng, numbers[0]), numbers[1])
    view, text, new = list(prompt)[-window:], list(prompt), []
    while len(new) < config.max_new_tokens:
        if len(view) > window:
            view = text[-max(window // 2, 1) :]
        padded = np.zeros((1, window), np.int32)
        padded[0, : len(view)] = view
        token = int(one(padded, len(view) - 1, jax.random.fold_in(key, len(text))))
        if token == eos_id:
            break
        new.append(token)
        text.append(token)
        view.append(token)
    return new


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {"position": "rope"},
    {"position": "learned"},
    {"position": "alibi", "pattern": "window", "pattern_size": 3, **FULL_EVERY_2},
])  # fmt: skip
def test_rolling_is_reading_the_window_anew_for_every_token(rng, changes):
    """Of several prompts of one batch, some longer than the window, and of a cache that is a ring."""
    model, params = make(rng, **changes, max_length=8)
    prompts = [rng.integers(1, VOCAB, n).tolist() for n in (1, 6, 8, 19)]
    config = DecodingConfig(max_new_tokens=17, temperature=0.7, top_k=9, min_p=0.05, num_samples=2)
    stepper = DecoderStepper.of(model, params)
    key = jax.random.key(int(rng.integers(2**31)))
    got = list(complete(stepper, prompts, key, config, ContextWindow(0, 8, True), batch_size=8))

    @jax.jit
    def one(padded, last, key):
        logits = model.apply({"params": params}, padded)[0, last, :VOCAB]
        return draw(logits[None], key[None], **config.options)[0]

    for i, (prompt, samples) in enumerate(zip(prompts, got, strict=True)):
        for j, sample in enumerate(samples):
            assert sample == brute_force(one, prompt, config, 8, key, (i, j), 0)


@pytest.mark.thorough
@pytest.mark.parametrize("config", [transformers.SMALL, recurrent.CONFIG])
def test_targets_are_drawn_as_the_whole_model_gives_them(rng, config):
    """Of an encoder-decoder and a recurrent one, sources of any length, one token at a time."""
    model = config.build(9)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32))
    sources = [[*rng.integers(1, 9, n).tolist(), 0] for n in (1, 6, 3)]
    draws = DecodingConfig(max_new_tokens=6, temperature=0.9, top_p=0.9, num_samples=2)
    key = jax.random.key(int(rng.integers(2**31)))
    got = list(complete(model.stepper(params, 0), sources, key, draws, ContextWindow(0, 8), batch_size=4))

    @jax.jit
    def one(source, segments, tokens, last, key):
        marks = {"source_segments_bs": segments, "segments_bt": jnp.ones_like(tokens)}
        logits = model.apply({"params": params}, source, tokens, **marks)[0, last, :9]
        return draw(logits[None], key[None], **draws.options)[0]

    for (i, source), j in itertools.product(enumerate(sources), range(2)):
        padded, segments, tokens = (np.zeros((1, n), np.int32) for n in (8, 8, 7))
        padded[0, : len(source)], segments[0, : len(source)] = source, 1
        of_row = jax.random.fold_in(jax.random.fold_in(key, i), j)
        expected = []
        while len(expected) < 6:
            tokens[0, 1 : len(expected) + 1] = expected
            place = jax.random.fold_in(of_row, len(source) + len(expected))
            token = int(one(padded, segments, tokens, len(expected), place))
            if token == 0:
                break
            expected.append(token)
        assert got[i][j] == expected


@pytest.fixture
def growths(monkeypatch):
    """By how much caches grow, from room for 3 new tokens on."""
    seen, grow = [], generation.grow

    def note(*inputs, more):
        seen.append(more)
        return grow(*inputs, more=more)

    monkeypatch.setattr(generation, "grow", note)
    monkeypatch.setattr(completion, "FIRST_ROOM", 3)
    return seen


WINDOW = {"pattern": "window", "pattern_size": 24, **FULL_EVERY_2}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["window", "drafted_window", "int8", "translation", "recurrent"])
def test_a_cache_that_grows_changes_nothing(rng, monkeypatch, growths, kind):
    """Of texts that end at different times, in one piece, with a check of what was drawn, and as a stream;
    layers with a window become rings as they grow."""
    if kind in ("translation", "recurrent"):
        config = transformers.SMALL if kind == "translation" else recurrent.CONFIG
        model, source = config.build(9), jnp.zeros((1, 1), jnp.int32)
        stepper, vocab = model.stepper(random_params(rng, model, source, source), 0), 9
    else:
        changes = {"position": "rope"} if kind == "int8" else WINDOW
        model, params = make(rng, max_length=80, **changes)
        stepper = DecoderStepper.of(model, params, "int8" if kind == "int8" else "auto")
        vocab = VOCAB
        if kind == "drafted_window":
            draft = DecoderStepper.of(*make(rng, max_length=80, **changes))
            stepper = SpeculativePair(stepper, draft, draft_tokens=2)
    prompts = [rng.integers(1, vocab, n).tolist() for n in (1, 14)]
    config = DecodingConfig(max_new_tokens=50, temperature=0.0 if "drafted" in kind else 1.5, num_samples=2)
    window, key = ContextWindow(0, 64, kind not in ("translation", "recurrent")), jax.random.key(3)

    def all_ways():
        yield list(complete(stepper, prompts, key, config, window))
        finished = {"finished": lambda prompt, new: len(new) > 30}  # a few tokens later with a draft
        early = complete(stepper, prompts, key, config, window, **finished)
        yield [[text[:31] for text in samples] for samples in early]
        yield list(stream(stepper, prompts[1], key, config, window))

    got, grown = list(all_ways()), sum(growths)
    assert grown > 40 and len(growths) < 20
    monkeypatch.setattr(completion, "FIRST_ROOM", 1_000)
    assert list(all_ways()) == got and sum(growths) == grown


@struct.dataclass
class Slots(Chain):
    """Notes how many tokens are read beyond the slots of the cache, (b, 2): tokens read, and slots."""

    over: list = struct.field(pytree_node=False, default=None)

    def prefill(self, tokens_bt, lengths_b, room, rewound=0):
        logits_bv, _ = super().prefill(tokens_bt, lengths_b, room)
        return logits_bv, jnp.zeros((len(lengths_b), 2), jnp.int32).at[:, 1].set(room)

    def grow(self, cache, more, rewound=0):
        return cache.at[:, 1].add(more)

    def step(self, tokens_b, cache):
        logits_bnv, cache = self.extend(tokens_b[:, None], cache)
        return logits_bnv[:, 0], cache

    def extend(self, tokens_bn, cache):
        cache = self.rewind(cache, -tokens_bn.shape[1])
        jax.debug.callback(lambda beyond: self.over.append(int(beyond)), jnp.max(cache[:, 0] - cache[:, 1]))
        return self.table_nv[tokens_bn], cache

    def rewind(self, cache, n):
        return cache.at[:, 0].add(-n)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("drafted", [0, 1, 4])
def test_nothing_is_read_beyond_the_cache(rng, monkeypatch, growths, drafted):
    """However many drafted tokens are accepted at once."""
    monkeypatch.setattr(completion, "FIRST_ROOM", 12)
    table, over = chain(rng, 12, scale=1.0).table_nv, []
    config = DecodingConfig(max_new_tokens=90, temperature=1.0, num_samples=12)
    model, draft = Slots(table, over=over), chain(rng, 12, scale=1.0)
    # A draft that knows most of what the target does: any number of its tokens is accepted.
    near = Slots(0.8 * table + 0.2 * draft.table_nv, over=over)
    stepper = SpeculativePair(model, near, draft_tokens=drafted) if drafted else model
    for finished in (None, lambda prompt, new: False):
        texts = sampled(stepper, [[1]], config, eos_id=-1, longest=200, finished=finished, batch_size=1)
        assert {len(text) for samples in texts for text in samples} == {90}
    jax.effects_barrier()
    assert len(over) > 40 and max(over) <= 0 and len(growths) >= 6


def test_a_cache_grows_only_for_texts_that_go_on(growths):
    config = DecodingConfig(max_new_tokens=1_000, temperature=0.0)
    for end, sizes in (3, []), (5, [3]), (30, [3, 6, 12, 24]):
        growths.clear()
        (((*text,),),) = sampled(cycle(200), [[0]], config, eos_id=end, longest=2_000)
        assert text == [*range(1, end)] and growths == sizes
    # What the limit leaves no room for is not added.
    growths.clear()
    config = DecodingConfig(max_new_tokens=30, temperature=0.0)
    sampled(cycle(200), [[0]], config, eos_id=150, longest=2_000)
    assert growths == [3, 6, 12, 6]


def test_a_stream_gives_what_the_whole_gives_token_by_token(rng):
    model, params = make(rng, max_length=8)
    stepper, key, reading = DecoderStepper.of(model, params), jax.random.key(5), ContextWindow(0, 8, True)
    for prompt in ([3], rng.integers(1, VOCAB, 11).tolist()):
        config = DecodingConfig(max_new_tokens=13, temperature=1.1)
        ((whole,),) = complete(stepper, [prompt], key, config, reading)
        assert list(stream(stepper, prompt, key, config, reading)) == whole
    config = DecodingConfig(max_new_tokens=10**6, temperature=1.0)
    endless = stream(cycle(5), [1], key, config, ContextWindow(9, 4, True))
    assert [next(endless) for _ in range(7)] == [2, 3, 4, 0, 1, 2, 3]


def test_a_text_that_is_over_holds_no_other_up_and_is_not_written_on(rng):
    asked = []

    def over(prompt, new):
        asked.append((prompt[-1], len(new)))
        return prompt[-1] == 3 and len(new) >= 20

    config = DecodingConfig(max_new_tokens=60, temperature=0.0)
    answers = sampled(cycle(200), [[3], [50]], config, eos_id=199, longest=300, finished=over)
    (short,), (long,) = answers
    assert short == [*range(4, 4 + len(short))] and 20 <= len(short) < 40
    assert long == [*range(51, 111)]
    with_all = sampled(cycle(200), [[3]], config, eos_id=199, longest=300)
    assert with_all[0][0][: len(short)] == short
    assert max(n for last, n in asked if last == 3) == len(short)


def test_any_of_several_tokens_ends_a_completion():
    config, window = DecodingConfig(max_new_tokens=30, temperature=0.0), ContextWindow(40, 16, True, (25, 33))
    texts = complete(cycle(90), [[20], [26], [34]], jax.random.key(0), config, window)
    assert [new for (new,) in texts] == [[*range(21, 25)], [*range(27, 33)], [*range(35, 40)]]


def test_so_many_tokens_more_than_were_read():
    config = DecodingConfig(max_new_tokens=5, temperature=0.0)
    answers = sampled(cycle(90), [[1], [1, 2, 3], [0] * 9], config, eos_id=80, rolling=False, extra_tokens=1)
    assert [len(sample) for (sample,) in answers] == [2, 4, 5]


@pytest.mark.thorough
def test_a_draft_changes_nothing_of_greedy_completions(rng):
    """Through windows that roll, whatever it proposes; a stream with a draft gives what the whole gives."""
    target, window = chain(rng, 12), ContextWindow(0, 8, True)
    prompts = [rng.integers(1, 12, n).tolist() for n in (1, 6, 19)]
    config = DecodingConfig(max_new_tokens=17, temperature=0.0, num_samples=2)
    expected = list(complete(target, prompts, jax.random.key(3), config, window))
    for draft in (chain(rng, 12), target):
        pair = SpeculativePair(target, draft, draft_tokens=2)
        assert list(complete(pair, prompts, jax.random.key(3), config, window)) == expected
        # One that is finished early is the beginning of the same text.
        early = complete(
            pair, prompts, jax.random.key(3), config, window, finished=lambda prompt, new: len(new) >= 2
        )
        for samples, whole in zip(early, expected, strict=True):
            assert [text == long[: len(text)] for text, long in zip(samples, whole, strict=True)] == [
                True
            ] * 2
    draws = DecodingConfig(max_new_tokens=17, temperature=1.1, top_k=9)
    ((whole,),) = complete(pair, prompts[:1], jax.random.key(3), draws, window)
    assert list(stream(pair, prompts[0], jax.random.key(3), draws, window)) == whole


@pytest.mark.parametrize("drafted", [False, True])
def test_probabilities_are_the_texts_for_all_rows(rng, drafted):
    """Frequencies over many keys, through windows, of a model that knows its last token alone."""
    model, n = chain(rng, 3, scale=1.0), 4_000
    other = chain(rng, 3, scale=1.0)
    config = DecodingConfig(max_new_tokens=3, temperature=1.0, num_samples=n)
    stepper = SpeculativePair(model, other, draft_tokens=2) if drafted else model
    ((*samples,),) = sampled(stepper, [[1]], config, eos_id=-1, longest=2, batch_size=256)
    counts = np.zeros((3, 3, 3))
    np.add.at(counts, tuple(np.array(samples).T), 1)
    p = np.asarray(jax.nn.softmax(jnp.asarray(model.table_nv)), np.float64)
    expected = n * p[1][:, None, None] * p[:, :, None] * p[None]
    assert (np.abs(counts - expected) <= 6 * np.sqrt(expected) + 3).all()
