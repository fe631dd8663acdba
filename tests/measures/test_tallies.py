"""What is counted over a corpus equals what is measured text by text."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnviz
from attnviz.inputs.prompt import Text
from attnviz.inputs.text import encode
from attnviz.language.syntax import Arc
from attnviz.measures.bootstrap import standard_error, text_weights
from attnviz.measures.names import NameTally
from attnviz.measures.patterns import CHOSEN, SHUFFLED, PatternSpec, shares
from attnviz.measures.relations import RelationTally
from attnviz.measures.statistics import scalars
from attnviz.measures.tallies import OFFSETS, MeaningTally, StatisticsTally, mean_embedding
from attnviz.models.checkpoint import from_loaded
from tests.support import independent
from tests.support.corpora import count, sentence
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.tolerances import SHARP_32, SUMS_32, SUMS_64

TREES = [
    sentence("the cat saw the dog".split(), arcs=[Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 4, "det")]),
    sentence("the unbelievable cat ran".split(), arcs=[Arc(0, 2, "det"), Arc(1, 2, "amod"), Arc(2, 3, "nsubj:pass")]),
    sentence(["the", "\u200b", "dog", "ran"], arcs=[Arc(0, 2, "det"), Arc(1, 2, "amod"), Arc(2, 3, "nsubj")]),
    sentence("he saw the house of the dog that ran away".split(), arcs=[Arc(0, 1, "nsubj"), Arc(3, 1, "obj")]),
]
"""Of different lengths; a word of several pieces, and one without any."""


def statistics(checkpoint, texts, batch_size=1, replicates=3, **more):
    tally = StatisticsTally(checkpoint)
    return count(tally, checkpoint, texts, batch_size, replicates, **more)


def test_statistics_are_means_and_ratios_over_the_whole_corpus(checkpoint):
    """Against the independent loops of one text at a time, weighted by positions or by attention on content."""
    tally, model = statistics(checkpoint, TREES, 3), (checkpoint.model, checkpoint.tokenizer)
    found, baselines = tally.results(), tally.baselines()
    for of_corpus in (found, baselines):  # in the order of heads.json
        assert [name for name in scalars() if name in of_corpus] == [name for name in of_corpus if name in scalars()]
    sums, weights = Counter(), Counter()
    for text in TREES:
        sink = independent.sink_flags(*model, text.text, None)
        n, content = len(sink), sink.count(False)
        patterns = independent.attentions(*model, text.text, None)
        keep = [i for i, is_sink in enumerate(sink) if not is_sink]
        for layer, head, numbers in independent.heads(*model, text.text):
            mass = patterns[layer, head][np.ix_(keep, keep)].sum()
            for name in ("entropy", "distance", "confidence", "sink", *shares(), SHUFFLED):
                weight = n if name in ("entropy", "distance", "confidence") else content if name == "sink" else mass
                sums[name, layer, head] += weight * (numbers.get(name) or 0.0)
                weights[name, layer, head] += weight
        for name in shares():
            sums["baseline", name] += content * (numbers["baseline"][name] or 0.0)
        sums["baseline", "entropy"] += n * numbers["entropy_uniform"]
        weights["content"] += content
        weights["n"] += n
    impossible = ["next"] if checkpoint.architecture.causal else []
    for name in {"entropy", "distance", "confidence", "sink", *shares(), SHUFFLED}.difference(impossible):
        expected = [[sums[name, i, j] / weights[name, i, j] for j in range(4)] for i in range(3)]
        np.testing.assert_allclose(found[name], expected, atol=SUMS_32, err_msg=name)
    for name in set(shares()).difference(impossible, {CHOSEN}):
        assert baselines[name] == pytest.approx(sums["baseline", name] / weights["content"])
    for name in impossible:
        assert found[name].isnan().all()
        assert baselines[name] is None
    assert baselines["entropy"] == pytest.approx(sums["baseline", "entropy"] / weights["n"])
    assert (tally.n_texts, tally.n_non_sink) == (4, weights["content"])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_offsets_their_baselines_and_the_n_of_patterns_are_those_of_plain_loops(checkpoint, batch_size):
    """n counts the content with a key under the pattern: offsets of 8 have few in short sentences, the sink all."""
    causal, tally = checkpoint.architecture.causal, statistics(checkpoint, TREES, batch_size)
    at, uniform, n, total, sinks, queries = Counter(), Counter(), Counter(), np.zeros((3, 4)), 0, 0
    for text in TREES:
        sink = independent.sink_flags(checkpoint.model, checkpoint.tokenizer, text.text, None)
        patterns = independent.attentions(checkpoint.model, checkpoint.tokenizer, text.text, None)
        content = [i for i, is_sink in enumerate(sink) if not is_sink]
        queries += len(content)
        for q in content:
            keys = [k for k in content if k <= q or not causal]
            n_seen = q + 1 if causal else len(sink)
            sinks += (n_seen - len(keys)) / n_seen
            for k in keys:
                total += patterns[:, :, q, k]
                at[f"offset:{k - q:+d}"] += patterns[:, :, q, k]
                uniform[f"offset:{k - q:+d}"] += 1 / len(keys)
            n.update(f"offset:{k - q:+d}" for k in keys)
            n.update({"long_range": any(abs(k - q) >= 4 for k in keys), "previous": q - 1 in keys, "sink": 1})
    found, baselines, estimates = tally.results(), tally.baselines(), tally.estimates()
    assert len(OFFSETS) == 14
    for name in OFFSETS:
        if causal and "+" in name:
            assert found[name].isnan().all()
            assert baselines[name] is None
        else:
            np.testing.assert_allclose(found[name], at[name] / total, atol=SUMS_32)
            assert baselines[name] == pytest.approx(uniform[name] / queries)
    np.testing.assert_allclose(1 - found["sink"], total / queries, atol=SUMS_32)
    assert baselines["sink"] == pytest.approx(sinks / queries)
    for name in ("long_range", "previous", "sink", *(offset for offset in OFFSETS if offset in estimates)):
        assert estimates[name].n.unique().tolist() == [n[name]], name
    assert n["offset:-8"] < n["previous"] < n["sink"]


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.usefixtures("fresh_plugins")
def test_a_new_pattern_that_reads_the_text_is_counted_text_by_text(checkpoint, batch_size):
    """Attention to tokens with an ``a``, against a loop over single texts."""

    def with_a(text):
        return torch.tensor([["a" in label for label in text.labels]] * text.n)

    spec = PatternSpec("with_a", "with-a", with_a, "tokens with an a", "other", reads_text=True)
    attnviz.register(spec)
    tally = statistics(checkpoint, TREES, batch_size)
    on_a, on_content, uniform, n_content = np.zeros((3, 4)), np.zeros((3, 4)), 0.0, 0
    for text in TREES:
        (item,) = encode(checkpoint, [text])
        patterns = independent.attentions(checkpoint.model, checkpoint.tokenizer, text.text, None)
        content = [place for place, sink in enumerate(item.sink) if not sink]
        for query in content:
            keys = [key for key in content if key <= query or not checkpoint.architecture.causal]
            chosen = [key for key in keys if "a" in item.pieces[key]]
            on_a += patterns[:, :, query, chosen].sum(-1)
            on_content += patterns[:, :, query, keys].sum(-1)
            uniform += len(chosen) / len(keys)
        n_content += len(content)
    np.testing.assert_allclose(tally.results()["with_a"], on_a / on_content, atol=SUMS_32)
    assert tally.baselines()["with_a"] == pytest.approx(uniform / n_content, rel=SUMS_32)


def test_standard_errors_are_those_of_a_bootstrap_over_texts(checkpoint):
    """And of a seed, whatever the batches."""
    texts = [text for text in TREES for _ in range(5)]
    broad = statistics(checkpoint, texts, 4, 2000, seed=5).estimates()["broad"]
    alone = {text: statistics(checkpoint, [text]) for text in TREES}
    entropy = np.array([alone[text].results()["entropy"][1, 2] for text in texts])
    uniform = np.array([alone[text].baselines()["entropy"] for text in texts])
    length = np.array([len(encode(checkpoint, [text])[0]) for text in texts])
    drawn = np.random.default_rng(0).integers(len(texts), size=(4000, len(texts)))
    means = (entropy * length)[drawn].sum(1) / (uniform * length)[drawn].sum(1)
    assert float(broad.scores[0, 1, 2]) == pytest.approx((entropy * length).sum() / (uniform * length).sum())
    assert float(broad.errors[0, 1, 2]) == pytest.approx(means.std(), rel=0.15)
    one, other, seeded = (
        statistics(checkpoint, TREES, batch_size, 20, seed=seed).estimates()["sink"].errors
        for seed, batch_size in ((1, 2), (1, 3), (2, 2))
    )
    torch.testing.assert_close(one, other, atol=SUMS_32, rtol=SHARP_32)
    assert not torch.allclose(one, seeded, rtol=1e-2)


NAMED = ("fixed offset", "chance", "first word", "last word", "longest word", "other words")
WAYS = ("dependent_to_head", "head_to_dependent")


def plain_counts(checkpoint, text):
    """By relation and name: instances, offsets, and by way what is right, by a plain loop over words, of every head."""
    (item,) = encode(checkpoint, [text])
    words = [[place for place in word if not item.sink[place]] for word in item.members]
    layers = independent.attentions(checkpoint.model, checkpoint.tokenizer, text.text, None)
    sums = Counter()

    def seen_from(word):
        before = range(word) if checkpoint.architecture.causal else range(len(words))
        return [other for other in before if words[other] and words[word] and other != word]

    def guess(at, word):
        rows = layers[at][words[word]]
        return max(seen_from(word), key=lambda other: (rows[:, words[other]].sum(1).mean(), -other), default=None)

    for arc in text.arcs:
        if not words[arc.dependent] or not words[arc.head]:
            continue
        for name in {arc.relation, arc.relation.split(":")[0]}:
            sums[name, "n"] += 1
            sums[name, "offset", arc.head - arc.dependent] += 1
            for way, query, target in zip(WAYS, (arc.dependent, arc.head), (arc.head, arc.dependent), strict=True):
                seen = seen_from(query)
                sums[name, way, "chance"] += (target in seen) / max(len(seen), 1)
                sums[name, way, "first word"] += seen[:1] == [target]
                sums[name, way, "last word"] += seen[-1:] == [target]
                longest = max(seen, key=lambda w: (len(words[w]), -w), default=None)
                sums[name, way, "longest word"] += longest == target
                others = [word for word in range(len(words)) if word != query and target in seen_from(word)]
                for at in np.ndindex(3, 4):
                    sums[name, way, at] += guess(at, query) == target
                    right = sum(guess(at, word) == target for word in others)
                    sums[name, way, "other words", at] += right / max(len(others), 1)
    return sums


@pytest.mark.parametrize("batch_size", [4, pytest.param(1, marks=pytest.mark.thorough)])
def test_relations_and_all_six_baselines_are_those_of_plain_loops_in_every_bootstrap_sample(checkpoint, batch_size):
    texts = [replace(text, number=number) for number, text in enumerate(TREES, start=1)]
    samples = text_weights(0, [text.number for text in texts], 3)
    assert len({tuple(row) for row in samples.tolist()}) == 4
    relations = count(RelationTally(checkpoint), checkpoint, texts, batch_size).results()
    of_texts, expected = [plain_counts(checkpoint, text) for text in texts], [Counter() for _ in samples]
    for sums, row in zip(expected, samples.tolist(), strict=True):
        for weight, counts in zip(row, of_texts, strict=True):
            for name, value in counts.items():
                sums[name] += weight * value
    n_texts = Counter(name for counts in of_texts for name, *what in counts if what == ["n"])
    wanted = {name: (expected[0][name, "n"], number) for name, number in n_texts.items()}
    assert {each.relation: (each.n, each.accuracy.texts) for each in relations} == wanted
    assert wanted.keys() >= {"nsubj", "nsubj:pass", "det"}
    for relation in relations:
        name, found = relation.relation, relation.accuracy
        assert (found.directions, tuple(found.baselines)) == (WAYS, NAMED)
        best = max(value for key, value in expected[0].items() if key[:2] == (name, "offset"))
        assert expected[0][name, "offset", relation.offset] == best
        scores, baselines = np.zeros((4, 2, 3, 4)), {each: np.zeros((4, 2, 3, 4)) for each in NAMED}
        for sample, place, layer, head in np.ndindex(scores.shape):
            at, way, sums = (layer, head), WAYS[place], expected[sample]
            n, where = sums[name, "n"] or np.nan, (sample, place, layer, head)
            scores[where] = sums[name, way, at] / n
            baselines["other words"][where] = sums[name, way, "other words", at] / n
            baselines["fixed offset"][where] = sums[name, "offset", relation.offset] / n
            for each in NAMED[1:-1]:
                baselines[each][where] = sums[name, way, each] / n
        np.testing.assert_allclose(found.scores, scores[0], atol=SUMS_64)
        for each in NAMED:
            np.testing.assert_allclose(found.baselines[each], baselines[each][0], atol=SUMS_64, err_msg=each)
        largest = np.stack([baselines[each][0] for each in NAMED]).argmax(0)  # as measured, in every sample
        deciding = np.take_along_axis(np.stack(list(baselines.values())), largest[None, None], 0)[0]
        np.testing.assert_allclose(found.baseline, deciding[0], atol=SUMS_64)
        torch.testing.assert_close(found.errors, standard_error(torch.from_numpy(scores[1:])), equal_nan=True)
        differences = standard_error(torch.from_numpy((scores - deciding)[1:]))
        torch.testing.assert_close(found.differences, differences, equal_nan=True)


def names_text(text, *words, answer=0, subjects=None, number=0):
    """A pronoun and two names by their words."""
    starts = [f" {text}".index(f" {word}") for word in words]
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=True))
    return Text(text, spans, answer=answer, subjects=subjects, number=number)


GAP_TEXTS = [
    names_text("the cat saw unbelievable and he ran", "he", "cat", "unbelievable", answer=1, subjects=(True, False)),
    names_text("of dog the house and a cat he saw it", "he", "dog", "cat", answer=0, subjects=(True, True)),
    names_text("unbelievable saw a dog and he was", "he", "unbelievable", "dog", answer=0, subjects=(True, False)),
    names_text("i saw a cat and a dog away he ran", "he", "cat", "dog", answer=1, subjects=(False, False)),
]
GUESSES = ("nearer name", "longer name", "subject, else nearer name")


def half(first, second, answer):
    """How far preferring the larger is right."""
    return 0.5 if first == second else float((second > first) == bool(answer))


def plain_names(checkpoint, text):
    """By direction and head, by sum, by mean, from elsewhere; and the three guesses."""
    (item,) = encode(checkpoint, [text])
    pronoun, *names = [list(positions) for positions in item.members]
    own = {*pronoun, *names[0], *names[1]}
    elsewhere = [i for i, sink in enumerate(item.sink) if not sink and i not in own]
    if checkpoint.architecture.causal:
        elsewhere = [i for i in elsewhere if i > max(map(max, names))]
    layers = independent.attentions(checkpoint.model, checkpoint.tokenizer, text.text, None)

    def mean(pattern, queries, keys):
        return float(np.mean([sum(pattern[q, k] for k in keys) for q in queries])) if queries else 0.0

    heads = {}
    for at in np.ndindex(3, 4):
        pattern, right = layers[at], text.answer
        sums = [mean(pattern, pronoun, name) for name in names]
        means = [total / len(name) for total, name in zip(sums, names, strict=True)]
        heads["pronoun_to_name", at] = [half(*sums, right), half(*means, right),
                                        half(*(mean(pattern, elsewhere, name) for name in names), right)]  # fmt: skip
        back = half(*(mean(pattern, name, pronoun) for name in names), right)
        heads["name_to_pronoun", at] = [back, back, half(*(mean(pattern, name, elsewhere) for name in names), right)]
    nearer = [-abs(name[0] - pronoun[0]) for name in names]
    subject = [float(each) for each in text.subjects or (False, False)]
    subject = nearer if subject[0] == subject[1] else subject
    guesses = [half(*each, text.answer) for each in (nearer, [len(name) for name in names], subject)]
    return heads, guesses


@pytest.mark.parametrize("batch_size", [1, 4])
def test_names_and_their_guesses_are_those_of_plain_loops_in_every_bootstrap_sample(checkpoint, batch_size):
    texts = [replace(text, number=number) for number, text in enumerate(GAP_TEXTS, start=1)]
    samples = text_weights(0, [text.number for text in texts], 3).numpy()
    assert samples.sum(1).min() > 0
    found = count(NameTally(checkpoint), checkpoint, texts, batch_size).results()
    each = [plain_names(checkpoint, text) for text in texts]
    guesses = samples @ np.array([of for _, of in each]) / samples.sum(1, keepdims=True)
    ways = ("pronoun_to_name",) if checkpoint.architecture.causal else ("pronoun_to_name", "name_to_pronoun")
    assert (found.accuracy.directions, found.n, found.accuracy.texts) == (ways, 4, 4)
    assert tuple(found.accuracy.baselines) == (*GUESSES, "other words")
    values = np.array([[[heads[way, at] for at in np.ndindex(3, 4)] for way in ways] for heads, _ in each])
    values = np.einsum("rt,twhk->rwhk", samples, values) / samples.sum(1)[:, None, None, None]
    values = values.reshape(4, len(ways), 3, 4, 3)
    np.testing.assert_allclose(found.accuracy.scores, values[0, ..., 0])
    np.testing.assert_allclose(found.by_mean, values[0, ..., 1])
    np.testing.assert_allclose(found.accuracy.baselines["other words"], values[0, ..., 2])
    for name, of_guess in zip(GUESSES, guesses.T, strict=True):
        np.testing.assert_allclose(found.accuracy.baselines[name], np.full_like(values[0, ..., 0], of_guess[0]))
    broadcast = np.broadcast_to(guesses.T[:, :, None, None, None], (3, *values.shape[:-1]))
    every = np.concatenate([broadcast, values[None, ..., 2]])
    deciding = np.take_along_axis(every, every[:, 0].argmax(0)[None, None], 0)[0]
    expected = standard_error(torch.from_numpy((values[..., 0] - deciding)[1:]))
    torch.testing.assert_close(found.accuracy.differences, expected)
    assert not np.allclose(values[..., 0], values[..., 1])  # of the sum and the mean over pieces, something differs


def test_subjects_are_a_guess_only_where_all_examples_were_parsed(checkpoint):
    unparsed = [GAP_TEXTS[0], replace(GAP_TEXTS[1], subjects=None)]
    found = count(NameTally(checkpoint), checkpoint, unparsed, 2).results()
    assert tuple(found.accuracy.baselines) == (*GUESSES[:2], "other words")
    assert NameTally(checkpoint).results() is None


@pytest.mark.parametrize(
    ("make", "texts"),
    [
        (StatisticsTally, TREES),
        (RelationTally, TREES),
        (NameTally, GAP_TEXTS),
    ],
)
def test_two_tallies_one_of_them_saved_and_loaded_add_up_to_one_of_all_texts(checkpoint, make, texts, tmp_path):
    numbered = [replace(text, number=number) for number, text in enumerate(texts, start=1)]
    whole, first, second = (
        count(make(checkpoint), checkpoint, some) for some in (numbered, numbered[:1], numbered[1:])
    )
    torch.save(first.state(), tmp_path / "state")
    resumed = make(checkpoint)
    resumed.merge(torch.load(tmp_path / "state", weights_only=True))
    resumed.merge(second.state())
    torch.testing.assert_close(resumed.state(), whole.state())
    going_on = make(checkpoint)
    going_on.merge(torch.load(tmp_path / "state", weights_only=True))
    torch.testing.assert_close(count(going_on, checkpoint, numbered[1:]).state(), whole.state())


def test_weights_belong_to_a_text_whatever_its_batch():
    together = text_weights(3, [7, 1, 2], 50)
    assert together.shape == (51, 3)
    assert (together[0] == 1).all()
    assert torch.equal(together[:, [1]], text_weights(3, [1], 50))
    assert not torch.equal(together[:, 0], together[:, 1])
    assert not torch.equal(together, text_weights(4, [7, 1, 2], 50))


def test_samples_in_which_nothing_counts_are_left_out_of_the_error():
    values = torch.tensor([[1.0, torch.nan, torch.nan], [3.0, 2.0, torch.nan], [torch.nan, 6.0, 4.0]])
    found = standard_error(values)
    assert found[:2].tolist() == pytest.approx([2**0.5, 8**0.5])
    assert found[2].isnan()


MEANT = ["the cat saw the dog", "the unbelievable cat ran away", "one two", "he saw the house of the dog that ran away"]


def meanings(checkpoint, places, batch_size=1):
    """A tally of these of the texts, every replicate weighted by their places."""
    texts = [Text(MEANT[place], number=10 + place) for place in places]
    return count(MeaningTally(checkpoint), checkpoint, texts, batch_size)


def plain_meanings(checkpoint, texts):
    """Scores, [n_layers, n_heads], and baseline as defined, pair by pair."""
    tokenizer, causal = checkpoint.tokenizer, checkpoint.architecture.causal
    table = checkpoint.model.get_input_embeddings().weight.detach().double()
    special = tokenizer.all_special_tokens
    ordinary = [i for i in range(len(tokenizer)) if tokenizer.convert_ids_to_tokens(i) not in special]
    table = table - table[ordinary].mean(0)
    weighted, total, means = 0.0, 0.0, []
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        sink = independent.sink_flags(checkpoint.model, tokenizer, text, None)
        patterns = independent.attentions(checkpoint.model, tokenizer, text, None)
        for q in range(len(ids)):
            found = []
            for k in range(q + 1 if causal else len(ids)):
                if sink[q] or sink[k] or ids[q] == ids[k]:
                    continue
                found.append(float(torch.cosine_similarity(table[ids[q]], table[ids[k]], dim=0)))
                weighted = weighted + patterns[:, :, q, k] * found[-1]
                total = total + patterns[:, :, q, k]
            means += [sum(found) / len(found)] if found else []
    return weighted / total, sum(means) / len(means)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_and_baseline_are_those_of_plain_loops(checkpoint, batch_size):
    tally = meanings(checkpoint, [0, 1, 2, 3], batch_size)
    found = tally.results()
    expected, expected_baseline = plain_meanings(checkpoint, MEANT)
    assert expected.shape == (3, 4)
    np.testing.assert_allclose(found.scores[0], expected, atol=SUMS_32)
    np.testing.assert_allclose(found.baseline[0], np.full((3, 4), expected_baseline), atol=SUMS_32)
    assert (found.texts, found.n.unique().tolist()) == (4, [tally.n_queries])


def test_errors_are_those_of_texts_that_count_as_often_as_drawn(checkpoint):
    weights = text_weights(0, [10, 11, 12, 13], 3)[1:].long()
    assert int(weights.sum(1).min()) > 0
    assert len({tuple(row) for row in weights.tolist()}) == 3
    drawn = [meanings(checkpoint, torch.arange(4).repeat_interleave(row).tolist()).results() for row in weights]
    found = meanings(checkpoint, [0, 1, 2, 3], 2).results()
    torch.testing.assert_close(found.errors, torch.stack([each.scores for each in drawn]).std(0), atol=SUMS_32, rtol=0)
    above = torch.stack([each.scores - each.baseline for each in drawn]).std(0)
    torch.testing.assert_close(found.differences, above, atol=SUMS_32, rtol=0)
    assert float(found.differences.min()) > 0


def test_a_text_of_one_word_over_and_over_has_no_pairs(checkpoint):
    found = count(MeaningTally(checkpoint), checkpoint, [Text("cat cat cat")], replicates=2).results()
    assert found.scores.isnan().all()
    assert found.baseline.isnan().all()
    assert not found.n.any()


def test_special_tokens_and_rows_that_no_token_has_are_left_out_of_the_mean():
    model, tokenizer = sharp_bert(vocab_size=len(bert_tokenizer()) + 7), bert_tokenizer()
    table = model.get_input_embeddings().weight
    expected = table[[i for i in range(len(tokenizer)) if i not in range(5)]].mean(0)
    with torch.no_grad():
        table[:5] += 100
        table[len(tokenizer) :] -= 50
    assert torch.allclose(mean_embedding(from_loaded(model, tokenizer)), expected.double(), atol=SUMS_32)
