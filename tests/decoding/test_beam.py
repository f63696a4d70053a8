"""Beam search against all sequences there are, and against a plain search that never stops early."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from tests.decoding.test_incremental import FULL_EVERY_2, VOCAB, make
from tests.decoding.toy import Chain, Counter, Tree, chain, cycle, tree
from tests.models import test_encoder_decoder as transformers
from tests.models import test_recurrent_encoder_decoder as recurrent
from tests.parameters import random_params
from transformer.decoding.beam import BeamConfig, _largest, _rooms, beam_search, translate
from transformer.decoding.generation import generate
from transformer.errors import UserError
from transformer.models.decoder import DecoderStepper

EOS = 0
PENALTIES = [0.0, 0.6, 1.0, 2.5, -0.7]


def log_softmax(logits):
    x = np.asarray(logits, np.float64)
    highest = x.max()
    return x - highest - np.log(np.exp(x - highest).sum()) if np.isfinite(highest) else x


def log_probabilities(model, root, prefix):
    """What `model` gives for the token after `prefix`, which continues a prompt that ends with `root`."""
    if callable(model):
        return model(root, prefix)
    if isinstance(model, Chain):
        return log_softmax(model.table_nv[prefix[-1] if prefix else root])
    node = 0
    for token in prefix:
        node = node * model.vocab_size + token + 1
    return log_softmax(model.table_rnv[root, node])


def normalized(score, length, penalty):
    return score / ((5 + length) / 6) ** penalty


def everything(model, root, limit, penalty):
    """All continuations and their scores, best first."""
    found = []

    def visit(prefix, score):
        if len(prefix) == limit or prefix[-1:] == [EOS]:
            found.append((normalized(score, len(prefix), penalty), prefix))
        else:
            more = log_probabilities(model, root, prefix)
            for token in np.flatnonzero(more > -np.inf):
                visit([*prefix, int(token)], score + more[token])

    visit([], 0.0)
    return sorted(found, reverse=True)


def plain_search(model, root, limit, penalty, beam, tolerance=1e-5):
    """A beam search that continues to the limit whatever it has found; None where rounding would decide."""
    live, finished, gap = [(0.0, [])], [], np.inf
    for length in range(1, limit + 1):
        grown = [
            (score + more, [*prefix, token])
            for score, prefix in live
            for token, more in enumerate(log_probabilities(model, root, prefix))
            if more > -np.inf
        ]
        grown = sorted(grown, reverse=True)
        gap = min([gap, *(better[0] - worse[0] for better, worse in itertools.pairwise(grown))])
        grown = grown[: 2 * beam]
        over = [tokens[-1] == EOS or length == limit for _, tokens in grown]
        finished += [
            (normalized(score, length, penalty), tokens)
            for (score, tokens), ended in list(zip(grown, over, strict=True))[:beam]
            if ended
        ]
        live = [one for one, ended in zip(grown, over, strict=True) if not ended][:beam]
        if beam == 1 and finished:
            break
    finished.sort(reverse=True)
    gap = min([gap, *(better[0] - worse[0] for better, worse in itertools.pairwise(finished))])
    return finished[:beam] if gap > tolerance else None


def padded(tokens, n):
    return tokens + [EOS] * (n - len(tokens))


def check(results, expected, n, tolerance=1e-5):
    """One row's results are the first of the expected (score, tokens), and nothing where there are no more.

    Of equal scores, which a chain has where the same steps come in another order, any may be first.
    """
    tokens, lengths, scores = map(np.asarray, results)
    best = [score for score, _ in expected[: len(scores)]]
    np.testing.assert_allclose(
        scores, best + [-np.inf] * (len(scores) - len(best)), rtol=tolerance, atol=tolerance
    )
    known = {tuple(padded(text, n)): (score, text) for score, text in expected}
    assert len({tuple(row) for row in tokens[: len(best)]}) == len(best)
    for row, length, score in zip(tokens, lengths, scores, strict=True):
        expected_score, text = known[tuple(row)] if score > -np.inf else (-np.inf, [])
        np.testing.assert_allclose(score, expected_score, rtol=tolerance, atol=tolerance)
        assert length == len(text) - (text[-1:] == [EOS])


def rows_of(results):
    return zip(*map(np.asarray, results), strict=True)


def roots(n):
    return np.arange(n, dtype=np.int32)[:, None], np.ones(n, np.int32)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("vocabulary,depth", [(3, 4), (4, 3)])
def test_a_beam_that_holds_everything_finds_the_best_of_all(rng, kind, vocabulary, depth):
    beam = vocabulary**depth
    model = chain(rng, vocabulary) if kind == "chain" else tree(rng, vocabulary, vocabulary, depth)
    for penalty in PENALTIES:
        results = beam_search(
            model,
            *roots(vocabulary),
            beam_size=beam,
            max_new_tokens=depth,
            length_penalty=penalty,
            eos_id=EOS,
        )
        for root, row in enumerate(rows_of(results)):
            check(row, everything(model, root, depth, penalty), depth)


@pytest.mark.thorough
@pytest.mark.parametrize("beam,n_best", [(1, None), (2, None), (3, 1), (4, 2)])
def test_stopping_early_never_changes_what_is_found(rng, beam, n_best):
    """With random per-row limits, and with tokens that have no probability at all."""
    n, depth = 6, 5
    for trial in range(30):
        model = tree(rng, n, 4, depth, scale=rng.choice([0.5, 2.0, 5.0]))
        table = np.array(model.table_rnv)
        table[..., EOS] += rng.choice([-1.0, 0.0, 2.0])
        if trial % 3 == 0:
            forbidden = rng.random(table.shape) < 0.4
            table = np.where(forbidden, -np.inf, table)
        model = Tree(jnp.asarray(table))
        limits = rng.integers(1, depth + 1, n)
        penalty = PENALTIES[trial % 5]
        results = beam_search(
            model,
            *roots(n),
            beam_size=beam,
            max_new_tokens=depth,
            length_penalty=penalty,
            eos_id=EOS,
            limits_b=limits,
            n_best=n_best,
        )
        assert results[2].shape == (n, n_best or beam)
        for root, row in enumerate(rows_of(results)):
            expected = plain_search(model, root, limits[root], penalty, beam)
            if expected is not None:
                check(row, expected[: n_best or beam], depth)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("penalty", [*PENALTIES, 10.0, -10.0])
def test_one_beam_is_greedy(rng, penalty):
    """Whatever the penalty: also where a longer text than the greedy one would have the better score."""
    model, (tokens, lengths) = chain(rng, 40), roots(40)
    model = Chain(model.table_nv.at[:, EOS].add(3.0))
    rngs = jax.random.split(jax.random.key(0), 40)
    greedy, greedy_lengths = generate(
        model, tokens, lengths, rngs, max_new_tokens=9, temperature=None, eos_id=EOS
    )
    found, found_lengths, scores = beam_search(
        model, tokens, lengths, beam_size=1, max_new_tokens=9, length_penalty=penalty, eos_id=EOS
    )
    np.testing.assert_array_equal(found[:, 0], greedy)
    np.testing.assert_array_equal(found_lengths[:, 0], greedy_lengths)
    for root in range(40):
        text = np.asarray(greedy[root])[: min(int(greedy_lengths[root]) + 1, 9)].tolist()
        score = sum(log_probabilities(model, root, text[:i])[token] for i, token in enumerate(text))
        np.testing.assert_allclose(
            scores[root, 0], normalized(score, len(text), penalty), rtol=1e-4, atol=1e-4
        )


def test_a_kept_hypothesis_is_kept_once_and_in_order(rng):
    model = chain(rng, 6, scale=1.0)
    tokens, lengths, scores = beam_search(
        model, *roots(6), beam_size=5, max_new_tokens=7, length_penalty=0.6, eos_id=EOS
    )
    assert (np.diff(scores, axis=1) <= 0).all() and np.isfinite(scores).all()
    for row in np.asarray(tokens).tolist():
        assert len({tuple(each) for each in row}) == 5
    past = np.arange(7) >= np.asarray(lengths)[..., None]
    assert (np.asarray(tokens) == EOS)[past].all()


@pytest.mark.parametrize("starts,steps", [([2, 5], 7), ([9, 9], 0), ([8, 9], 1)])
def test_the_loop_leaves_when_nothing_better_can_come(starts, steps):
    counter = Counter()
    tokens = np.array(starts, np.int32)[:, None]
    lengths = np.ones(2, np.int32)
    options = {"beam_size": 3, "max_new_tokens": 40, "eos_id": EOS, "length_penalty": 0.6}
    found, *_ = beam_search(cycle(10, counter), tokens, lengths, n_best=1, **options)
    jax.block_until_ready(found)
    jax.effects_barrier()
    assert counter.calls == steps
    np.testing.assert_array_equal(found[0, 0, : 10 - starts[0]], [*range(starts[0] + 1, 10), EOS])


@pytest.mark.thorough
def test_the_penalty_holds_the_loop_open_only_as_far_as_length_can_help():
    """One end at 0.4 against a sure text of length 12 at 0.6 x 0.7^12: which limit decides, is computed."""
    table = np.full((3, 3), -np.inf, np.float32)
    table[1, [EOS, 2]] = np.log([0.4, 0.6])
    table[2, [EOS, 2]] = np.log([0.3, 0.7])
    for penalty in (0.0, 0.6, 1.0, 2.0):
        counter = Counter()
        model = Chain(jnp.asarray(table), counter)
        _, _, scores = beam_search(
            model,
            *(np.ones((1, 1), np.int32), np.ones(1, np.int32)),
            beam_size=2,
            max_new_tokens=12,
            length_penalty=penalty,
            eos_id=EOS,
            n_best=1,
        )
        jax.block_until_ready(scores)
        jax.effects_barrier()
        best, expected = np.log(0.4), 0
        for length in range(1, 12):
            live = np.log(0.6) + (length - 1) * np.log(0.7)
            if normalized(live, 12, penalty) <= best:
                break
            expected += 1
            ended = live + np.log(0.7 if length == 11 else 0.3)
            best = max(best, normalized(ended, length + 1, penalty))
            if length == 11:
                best = max(best, normalized(live + np.log(0.7), 12, penalty))
        assert counter.calls == expected
        np.testing.assert_allclose(scores[0, 0], best, rtol=1e-5)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("vocabulary,beam", [(1, 3), (2, 4), (3, 5)])
def test_a_vocabulary_smaller_than_the_beam_leaves_places_empty(rng, vocabulary, beam):
    for eos in (EOS, -1):
        model = chain(rng, vocabulary)
        tokens, lengths, scores = beam_search(
            model, *roots(vocabulary), beam_size=beam, max_new_tokens=2, length_penalty=0.6, eos_id=eos
        )
        # Of two tokens each: all pairs, or those whose first is not the end, and the end.
        total = vocabulary**2 if eos < 0 else 1 + (vocabulary - 1) * vocabulary
        some = min(total, beam)
        assert np.isfinite(scores[:, :some]).all() and np.isneginf(scores[:, some:]).all()
        assert (np.asarray(tokens)[:, some:] == eos).all() and not np.asarray(lengths)[:, some:].any()


def test_without_any_probability_there_is_nothing():
    model = Chain(jnp.full((3, 3), -jnp.inf))
    tokens, lengths, scores = beam_search(
        model, *roots(3), beam_size=2, max_new_tokens=4, length_penalty=0.6, eos_id=EOS
    )
    assert np.isneginf(scores).all() and not np.asarray(lengths).any() and not np.asarray(tokens).any()


def test_a_row_does_not_depend_on_its_batch(rng):
    model, limits = tree(rng, 7, 4, 5), rng.integers(1, 6, 7)
    options = {"beam_size": 3, "max_new_tokens": 5, "length_penalty": 0.8, "eos_id": EOS}
    tokens, lengths = roots(7)
    together = beam_search(model, tokens, lengths, limits_b=limits, **options)
    for i in range(7):
        row = slice(i, i + 1)
        alone = beam_search(model, tokens[row], lengths[row], limits_b=limits[row], **options)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[0], b[i], rtol=1e-6), alone, together)


def test_scores_are_what_the_whole_model_gives(rng):
    """Were the cache not reordered with the beams, or wrongly, they would be of other texts."""
    model, params = make(rng)
    prompts = rng.integers(1, VOCAB, (3, 6)).astype(np.int32)
    lengths = np.array([2, 6, 4], np.int32)
    tokens, new_lengths, scores = beam_search(
        DecoderStepper.of(model, params),
        prompts,
        lengths,
        beam_size=4,
        max_new_tokens=7,
        length_penalty=0.6,
        eos_id=EOS,
    )
    full = jax.jit(lambda texts: model.apply({"params": params}, texts)[..., :VOCAB])
    texts = np.zeros((12, 13), np.int32)
    for row, (i, j) in enumerate(itertools.product(range(3), range(4))):
        texts[row, : lengths[i]] = prompts[i, : lengths[i]]
        texts[row, lengths[i] : lengths[i] + 7] = tokens[i, j]
    logits = np.asarray(full(texts))
    for row, (i, j) in enumerate(itertools.product(range(3), range(4))):
        length = min(int(new_lengths[i, j]) + 1, 7)
        score = sum(
            log_softmax(logits[row, lengths[i] + t - 1])[texts[row, lengths[i] + t]] for t in range(length)
        )
        np.testing.assert_allclose(scores[i, j], normalized(score, length, 0.6), atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["window", "translation"])
def test_a_cache_that_grows_changes_nothing(rng, monkeypatch, kind):
    """Of texts of which some end in each part; a layer with a window becomes a ring while the beams share
    their prompt's keys."""
    if kind == "window":
        window = {"pattern": "window", "pattern_size": 14}
        stepper = DecoderStepper.of(*make(rng, max_length=64, **window, **FULL_EVERY_2))
    else:
        one = jnp.zeros((1, 1), jnp.int32)
        model = dataclasses.replace(transformers.SMALL, pattern="window", pattern_size=7).build(VOCAB)
        stepper = model.stepper(random_params(rng, model, one, one), EOS)
    sources = rng.integers(1, VOCAB, (3, 6)).astype(np.int32)
    options = {"beam_size": 3, "length_penalty": 0.6, "eos_id": EOS, "max_new_tokens": 25}
    search = functools.partial(beam_search, stepper, sources, np.array([2, 6, 4], np.int32), **options)
    limits = np.array([3, 25, 11])
    found = []
    for first, rooms in (64, [25]), (2, [2, 8, 25]):
        monkeypatch.setattr("transformer.decoding.beam.FIRST_ROOM", first)
        assert _rooms(25) == rooms
        beam_search.clear_cache()
        found += [search(), search(limits_b=limits)]
    for expected, got in zip(found[:2], found[2:], strict=True):
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_allclose(got[2], expected[2], atol=1e-4)
        assert len({*np.asarray(got[0]).ravel().tolist()}) > 3
    beam_search.clear_cache()


@pytest.mark.parametrize("most,rooms", [(1, [1]), (64, [64]), (65, [64, 65]), (256, [64, 256]),
                                        (1_000, [64, 256, 1_000])])  # fmt: skip
def test_a_cache_has_room_for_few_tokens_and_four_times_as_many_when_it_is_full(most, rooms):
    assert _rooms(most) == rooms


WRITERS = {
    "transformer": transformers.SMALL,
    "transformer_window": dataclasses.replace(transformers.SMALL, pattern="window", pattern_size=2),
    "gru_additive": recurrent.CONFIG,
    "lstm_dot": dataclasses.replace(recurrent.CONFIG, cell="lstm", attention="dot"),
    "gru_none": dataclasses.replace(recurrent.CONFIG, attention="none"),
}
"""Models that write from a source, an encoder-decoder of each kind."""


@pytest.fixture(scope="module", params=WRITERS)
def writer(request):
    """A model that writes from a source, and by the source's number the log-probabilities of all its texts of
    `DEPTH` tokens, from the full pass over each text: [source, text, place, token]."""
    rng = np.random.default_rng(list(request.param.encode()))
    model = WRITERS[request.param].build(FEW)
    one = jnp.zeros((1, 1), jnp.int32)
    params = jax.tree.map(lambda leaf: 2 * leaf, random_params(rng, model, one, one))
    sources = rng.integers(1, FEW, (3, 5)).astype(np.int32)
    lengths = np.array([5, 2, 3], np.int32)
    texts = np.array(list(itertools.product(range(FEW), repeat=DEPTH)), np.int32)
    tokens = np.pad(texts, ((0, 0), (1, 0)), constant_values=EOS)[:, :-1]

    @jax.jit
    def full(source, length):
        read = jnp.broadcast_to(jnp.arange(5) < length, (len(texts), 5)).astype(jnp.int32)
        marks = {"source_segments_bs": read, "segments_bt": jnp.ones_like(tokens)}
        source = jnp.broadcast_to(source, read.shape)
        return model.apply({"params": params}, source, tokens, **marks)[..., :FEW]

    logits = np.stack([full(*each) for each in zip(sources, lengths, strict=True)]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return (
        model.stepper(params, EOS),
        (sources, lengths),
        texts,
        logits - np.log(np.exp(logits).sum(-1, keepdims=True)),
    )


FEW, DEPTH = 4, 4
"""How many tokens there are, and how many a text has at the most."""

OF_MODELS = 2e-4
"""How far scores of float32 models may be from those of the full pass: logits of about 10, summed in another
order, differ by 3e-5 from one machine to another."""


def every_text(texts, log_p, limit, penalty):
    """All that may be written, and their scores, best first."""
    found = {}
    for text, each in zip(texts.tolist(), log_p, strict=True):
        end = text.index(EOS) + 1 if EOS in text[:limit] else limit
        score = sum(each[i, token] for i, token in enumerate(text[:end]))
        found[tuple(text[:end])] = score / ((5 + end) / 6) ** penalty
    return sorted(((score, list(text)) for text, score in found.items()), reverse=True)


@pytest.mark.thorough
def test_a_beam_that_holds_everything_finds_the_best_of_all_that_a_model_can_write(writer):
    stepper, sources, texts, log_p = writer
    limits = np.array([DEPTH, 3, DEPTH])
    beam = FEW ** (DEPTH - 1)
    options = {"beam_size": beam, "max_new_tokens": DEPTH, "eos_id": EOS, "n_best": 20}
    for penalty in [*PENALTIES, 10.0]:
        results = beam_search(stepper, *sources, limits_b=limits, length_penalty=penalty, **options)
        for limit, of_source, row in zip(limits, log_p, rows_of(results), strict=True):
            check(row, every_text(texts, of_source, limit, penalty), DEPTH, OF_MODELS)


@pytest.mark.thorough
@pytest.mark.parametrize("beam", [1, 3])
def test_a_narrow_beam_finds_what_a_plain_search_of_the_model_finds(writer, beam):
    stepper, sources, texts, log_p = writer
    places = {tuple(text): place for place, text in enumerate(texts.tolist())}

    def given(row, root, prefix):
        return log_p[row, places[(*prefix, *[0] * (DEPTH - len(prefix)))], len(prefix)]

    for penalty in PENALTIES:
        options = {"beam_size": beam, "max_new_tokens": DEPTH, "length_penalty": penalty, "eos_id": EOS}
        for row, found in enumerate(rows_of(beam_search(stepper, *sources, **options))):
            expected = plain_search(functools.partial(given, row), 0, DEPTH, penalty, beam, OF_MODELS)
            if expected is not None:
                check(found, expected, DEPTH, OF_MODELS)


@pytest.mark.parametrize("vocabulary", [64 * 5, 64 * 9 + 17])
def test_the_largest_in_blocks_are_those_of_top_k(rng, vocabulary):
    for x in (
        rng.normal(size=(2, 3, vocabulary)),
        rng.integers(0, 9, (2, 3, vocabulary)),  # with ties
        np.where(rng.random((2, 3, vocabulary)) < 0.995, -np.inf, 1.0),
    ):
        x = jnp.asarray(x, jnp.float32)
        for got, expected in zip(_largest(x, 4), jax.lax.top_k(x, 4), strict=True):
            np.testing.assert_array_equal(got, expected)


@struct.dataclass
class Reader(Tree):
    """Translates by the sum of what it reads, so that every token of a source and nothing else counts."""

    def prefill(self, tokens_bt, lengths_b, room):
        read_bt = jnp.where(jnp.arange(tokens_bt.shape[1]) < lengths_b[:, None], tokens_bt, 0)
        root_b = jnp.sum(read_bt, axis=1) % self.table_rnv.shape[0]
        return super().prefill(root_b[:, None], jnp.ones_like(lengths_b), room)


CONFIG = BeamConfig(beam_size=3, max_new_tokens=4, n_best=2)


def translated(model, sources, config=CONFIG, **options):
    return list(translate(model, sources, config, **({"eos_id": EOS, "max_source_length": 32} | options)))


def test_translate_answers_each_source_in_order_whatever_the_batch(rng):
    model = Reader(tree(rng, 13, 4, 4).table_rnv)
    sources = [[*rng.integers(1, 50, rng.integers(0, 31)).tolist(), EOS] for _ in range(45)]
    expected = []
    for source in sources:
        search = plain_search(model, sum(source) % 13, 4, CONFIG.length_penalty, 3)
        expected.append(
            search and [(text[:-1] if text[-1] == EOS else text, score) for score, text in search[:2]]
        )
    for batch_size in (2, 16):  # two windows' and one window's sources
        for got, best in zip(translated(model, sources, batch_size=batch_size), expected, strict=True):
            if best is not None:
                assert [text for text, _ in got] == [text for text, _ in best]
                np.testing.assert_allclose(*([score for _, score in each] for each in (got, best)), atol=1e-4)


def test_translate_reads_the_beginning_and_the_end_of_a_source_that_is_too_long(rng):
    model = Reader(tree(rng, 97, 4, 4).table_rnv)
    source = list(range(1, 41))
    long, short = translated(model, [[*source, 1], [*source[:19], 1]], max_source_length=20)
    assert long == short != translated(model, [[*source, 1]], max_source_length=64)[0]


def test_translate_writes_so_many_tokens_more_than_it_read(rng):
    table = np.full((2, 2), -np.inf, np.float32)
    table[0, 1] = table[1, 1] = 0.0  # it never ends by itself
    model = Chain(jnp.asarray(table))
    sources = [[1] * n + [EOS] for n in (1, 3, 0)]
    config = dataclasses.replace(CONFIG, beam_size=1, n_best=1, max_new_tokens=5, extra_tokens=2)
    answers = translate(model, sources, config, eos_id=EOS, max_source_length=8)
    assert [len(best[0]) for best, *_ in answers] == [4, 5, 3]


def test_the_cache_has_room_for_the_tokens_that_there_may_be_and_no_more():
    """Of each shape of sources, however many tokens any other might have."""
    rooms = []

    @struct.dataclass
    class Room(Chain):
        def prefill(self, tokens_bt, lengths_b, room):
            rooms.append((tokens_bt.shape[1], room))
            return super().prefill(tokens_bt, lengths_b, room)

    table = np.full((2, 2), -np.inf, np.float32)
    table[0, 1] = table[1, 1] = 0.0
    sources = [[1] * n + [EOS] for n in (1, 3, 0, 40, 35, 62)]
    config = dataclasses.replace(CONFIG, beam_size=1, n_best=1, max_new_tokens=40, extra_tokens=2)
    options = {"eos_id": EOS, "max_source_length": 64, "batch_size": 3}
    answers = translate(Room(jnp.asarray(table)), sources, config, **options)
    assert [len(best[0]) for best, *_ in answers] == [4, 6, 3, 40, 38, 40]
    assert rooms == [(16, 18), (64, 40)]


def test_translate_takes_sources_as_it_needs_them_and_gives_only_what_there_is():
    taken = []

    def endless():
        for i in range(10**9):
            taken.append(i)
            yield [1, EOS]

    table = np.full((2, 2), -np.inf, np.float32)
    table[0, 1] = table[1, EOS] = 0.0
    answers = translate(
        Chain(jnp.asarray(table)), endless(), CONFIG, eos_id=EOS, max_source_length=8, batch_size=2
    )
    assert next(answers) == [([1], 0.0)]
    assert len(taken) <= 32


@pytest.mark.thorough
def test_translate_compiles_few_shapes(rng):
    model, before = Reader(tree(rng, 5, 3, 4).table_rnv), beam_search._cache_size()
    translated(model, [[1] * n for n in range(1, 60)], max_source_length=64, batch_size=4)
    assert beam_search._cache_size() - before <= 4


@pytest.mark.parametrize(
    "options,key",
    [
        ({"beam_size": 0}, "beam_size"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"n_best": 0}, "n_best"),
        ({"n_best": 5}, "n_best"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"length_penalty": float("inf")}, "length_penalty"),
    ],
)
def test_impossible_options_are_named(options, key):
    with pytest.raises(UserError, match=f"^{key}: {options[key]}; expected"):
        BeamConfig(**options)
