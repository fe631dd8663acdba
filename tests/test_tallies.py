"""What is counted over a corpus equals what is measured text by text."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnviz.commands.profile.instances import NameTally, RelationTally, between_spans
from attnviz.commands.profile.tallies import OFFSETS, StatisticsTally
from attnviz.corpora.batches import Text, batches, collate, encode
from attnviz.corpora.bootstrap import standard_error, text_weights
from attnviz.model.checkpoint import from_loaded
from attnviz.model.tokens import merge_pattern
from attnviz.patterns.registry import PATTERNS, SHARES, PatternSpec
from attnviz.patterns.syntax import Arc
from tests import independent
from tests.corpora import count
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.test_batches import sentence

TREES = [
    sentence(
        "the cat saw the dog".split(), arcs=[Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 4, "det"), Arc(4, 2, "obj")]
    ),
    sentence(
        "the unbelievable cat ran away".split(), arcs=[Arc(0, 2, "det"), Arc(1, 2, "amod"), Arc(2, 3, "nsubj:pass")]
    ),
    sentence("the dog ran".split(), arcs=[Arc(0, 1, "det"), Arc(1, 2, "nsubj")]),
    sentence("he saw the house of the dog that ran away".split(), arcs=[Arc(0, 1, "nsubj"), Arc(3, 1, "obj")]),
]


def statistics(checkpoint, texts, batch_size=1, replicates=3, **more):
    tally = StatisticsTally(3, 4, checkpoint.architecture.causal, replicates=replicates)
    return count(tally, checkpoint, texts, batch_size, replicates, **more)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_statistics_are_means_and_ratios_over_the_whole_corpus(checkpoint, batch_size):
    """Against the independent loops of one text at a time, weighted by positions or by attention on content."""
    tally, model = statistics(checkpoint, TREES, batch_size), (checkpoint.model, checkpoint.tokenizer)
    found, _ = tally.results()
    baselines = tally.baselines()
    sums, weights = Counter(), Counter()
    for text in TREES:
        sink = independent.sink_flags(*model, text.text, None)
        n, content = len(sink), sink.count(False)
        patterns = independent.attentions(*model, text.text, None)
        keep = [i for i, is_sink in enumerate(sink) if not is_sink]
        for layer, head, numbers in independent.heads(*model, text.text):
            mass = patterns[layer, head][np.ix_(keep, keep)].sum()
            for name in ("entropy", "distance", "confidence", "sink", *SHARES):
                weight = n if name in ("entropy", "distance", "confidence") else content if name == "sink" else mass
                sums[name, layer, head] += weight * (numbers[name] or 0.0)
                weights[name, layer, head] += weight
        for name in SHARES:
            sums["baseline", name] += content * (numbers["baseline"][name] or 0.0)
        sums["baseline", "entropy"] += n * numbers["entropy_uniform"]
        weights["content"] += content
        weights["n"] += n
    impossible = ["next"] if checkpoint.architecture.causal else []
    for name in {"entropy", "distance", "confidence", "sink", *SHARES}.difference(impossible):
        expected = [[sums[name, i, j] / weights[name, i, j] for j in range(4)] for i in range(3)]
        np.testing.assert_allclose(found[name], expected, atol=1e-5, err_msg=name)
    for name in set(SHARES).difference(impossible):
        assert baselines[name] == pytest.approx(sums["baseline", name] / weights["content"])
    for name in impossible:
        assert found[name].isnan().all()
        assert baselines[name] is None
    assert baselines["entropy"] == pytest.approx(sums["baseline", "entropy"] / weights["n"])
    assert (tally.n_texts, tally.n_content) == (4, weights["content"])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_offsets_and_their_baselines_are_those_of_plain_loops(checkpoint, batch_size):
    causal, tally = checkpoint.architecture.causal, statistics(checkpoint, TREES, batch_size)
    at, uniform, total, queries = Counter(), Counter(), np.zeros((3, 4)), 0
    for text in TREES:
        sink = independent.sink_flags(checkpoint.model, checkpoint.tokenizer, text.text, None)
        patterns = independent.attentions(checkpoint.model, checkpoint.tokenizer, text.text, None)
        content = [i for i, is_sink in enumerate(sink) if not is_sink]
        queries += len(content)
        for q in content:
            keys = [k for k in content if k <= q or not causal]
            for k in keys:
                total += patterns[:, :, q, k]
                at[f"offset:{k - q:+d}"] += patterns[:, :, q, k]
                uniform[f"offset:{k - q:+d}"] += 1 / len(keys)
    found, baselines = tally.results()[0], tally.baselines()
    assert len(OFFSETS) == 14
    for name in OFFSETS:
        if causal and "+" in name:
            assert found[name].isnan().all()
            assert baselines[name] is None
        else:
            np.testing.assert_allclose(found[name], at[name] / total, atol=1e-6)
            assert baselines[name] == pytest.approx(uniform[name] / queries)
    np.testing.assert_allclose(1 - found["sink"], total / queries, atol=1e-6)


@pytest.mark.parametrize("offset", [-8, -3, 4])
def test_attention_at_one_distance_is_all_at_its_offset(offset):
    tally = StatisticsTally(1, 1, False, replicates=2)
    (batch,) = batches(from_loaded(sharp_bert(), bert_tokenizer()), [TREES[3]], 1)
    tally.begin(batch, torch.ones(3, 1, dtype=torch.float64))
    n = batch.valid.shape[1]
    tally.add(0, torch.diag(torch.ones(n - abs(offset)), offset)[None, None], batch)
    shares = tally.results()[0]
    assert {name for name in OFFSETS if shares[name] == 1} == {f"offset:{offset:+d}"}
    assert sum(float(shares[name]) for name in OFFSETS) == 1


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_new_pattern_that_reads_the_text_is_counted_text_by_text(checkpoint, monkeypatch, batch_size):
    """Attention to tokens with an ``a``, against a loop over single texts."""
    spec = PatternSpec(
        "with_a", "with-a", lambda text: torch.tensor([["a" in label for label in text.labels]] * text.n),
        "tokens with an a", "other", reads_text=True,
    )  # fmt: skip
    monkeypatch.setattr("attnviz.commands.profile.tallies.PATTERNS", (*PATTERNS, spec))
    tally = statistics(checkpoint, TREES, batch_size)
    on_a, on_content, uniform, n_content = torch.zeros(3, 4), torch.zeros(3, 4), 0.0, 0
    for text in TREES:
        (item,) = encode(checkpoint, [text])
        content = torch.tensor([not sink for sink in item.sink])
        with_a = torch.tensor(["a" in piece for piece in item.pieces]) & content
        patterns = independent.attentions(checkpoint.model, checkpoint.tokenizer, text.text, None)
        rows = torch.from_numpy(patterns)[:, :, content]
        on_a += rows[..., with_a].sum((-1, -2))
        on_content += rows[..., content].sum((-1, -2))
        for query in content.nonzero().flatten().tolist():
            end = query + 1 if checkpoint.architecture.causal else None
            uniform += float(with_a[:end].sum() / content[:end].sum())
        n_content += int(content.sum())
    torch.testing.assert_close(tally.results()[0]["with_a"].float(), on_a / on_content, atol=1e-5, rtol=1e-5)
    assert tally.baselines()["with_a"] == pytest.approx(uniform / n_content, rel=1e-5)


def test_the_sink_baseline_is_the_share_of_sinks_among_the_keys(checkpoint):
    expected = np.mean([1 / (q + 1) for q in range(1, 5)]) if checkpoint.architecture.causal else 2 / 7
    assert statistics(checkpoint, TREES[:1]).baselines()["sink"] == pytest.approx(expected)


def test_standard_errors_are_those_of_a_bootstrap_over_texts(checkpoint):
    texts = [text for text in TREES for _ in range(5)]
    errors = statistics(checkpoint, texts, 4, 2000, seed=5).results()[1]
    alone = {text: statistics(checkpoint, [text]).results()[0]["entropy"][1, 2].item() for text in TREES}
    entropy = np.array([alone[text] for text in texts])
    length = np.array([len(encode(checkpoint, [text])[0]) for text in texts])
    drawn = np.random.default_rng(0).integers(len(texts), size=(4000, len(texts)))
    means = (entropy * length)[drawn].sum(1) / length[drawn].sum(1)
    assert float(errors["entropy"][1, 2]) == pytest.approx(means.std(), rel=0.15)


def test_errors_depend_on_the_seed_and_not_on_the_batches(checkpoint):
    one, other, seeded = (
        statistics(checkpoint, TREES, batch_size, 20, seed=seed).results()[1]["sink"]
        for seed, batch_size in ((1, 2), (1, 3), (2, 2))
    )
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(one, seeded, rtol=1e-2)


@pytest.mark.parametrize(
    "make", [lambda causal: StatisticsTally(3, 4, causal, replicates=3), lambda _: RelationTally(3, 4)]
)
def test_two_tallies_add_up_to_one_of_all_texts(checkpoint, make):
    numbered = [replace(text, number=number) for number, text in enumerate(TREES, start=1)]
    whole, first, second = (
        count(make(checkpoint.architecture.causal), checkpoint, texts)
        for texts in (numbered, numbered[:1], numbered[1:])
    )
    first.absorb(second.state())
    torch.testing.assert_close(first.state(), whole.state())


@pytest.mark.parametrize("batch_size", [1, 4])
def test_relations_are_counted_as_a_plain_loop_counts_them(checkpoint, batch_size):
    tally = count(RelationTally(3, 4), checkpoint, TREES, batch_size)
    found = {relation.relation: relation for relation in tally.results()}
    arcs = Counter(name for text in TREES for arc in text.arcs for name in {arc.relation, arc.relation.split(":")[0]})
    assert {name: relation.n for name, relation in found.items()} == arcs
    assert found["nsubj"].n == 4  # nsubj:pass is a nsubj
    assert found["nsubj:pass"].n == 1
    hits = Counter()
    for text in TREES:
        members = encode(checkpoint, [text])[0].members
        layers = independent.attentions(checkpoint.model, checkpoint.tokenizer, text.text, None)
        for layer, patterns in enumerate(layers):
            for head, pattern in enumerate(patterns):
                merged = independent.merge(pattern, [list(word) for word in members])
                for arc in text.arcs:
                    for way, a, b in (
                        ("dependent_to_head", arc.dependent, arc.head),
                        ("head_to_dependent", arc.head, arc.dependent),
                    ):
                        others = [word for word in range(len(merged)) if word != a]
                        best = max(others, key=lambda word: (merged[a, word], -word))
                        for name in {arc.relation, arc.relation.split(":")[0]}:
                            hits[name, way, layer, head] += merged[a, best] > 0 and best == b
    for name, relation in found.items():
        for way, counts in relation.hits.items():
            assert counts.tolist() == [[hits[name, way, layer, head] for head in range(4)] for layer in range(3)]


def test_relations_with_a_word_without_tokens_are_left_out():
    checkpoint = from_loaded(sharp_bert(), bert_tokenizer())
    text = sentence(["the", "\u200b", "cat"], arcs=[Arc(0, 2, "det"), Arc(1, 2, "amod")])
    tally = count(RelationTally(3, 4), checkpoint, [text])
    assert [relation.relation for relation in tally.results()] == ["det"]


def test_attention_between_spans_is_that_of_merged_words():
    pattern = torch.rand(2, 3, 6, 6)
    members = [[(0,), (1, 2), (5,)], [(3, 4), ()]]
    found = between_spans(pattern, members)
    assert found.shape == (2, 3, 3, 3)
    torch.testing.assert_close(found[0], merge_pattern(pattern[0], members[0]))
    torch.testing.assert_close(found[1, :, :1, :1], merge_pattern(pattern[1], members[1][:1]))
    assert (found[1, :, 1:] == 0).all()
    assert (found[1, :, :, 1:] == 0).all()


def test_names_are_guessed_by_more_attention():
    """One text of five tokens: the pronoun is token 4, the names are tokens 0 and 1-2."""
    checkpoint = from_loaded(sharp_gpt2(), gpt2_tokenizer())
    text = Text("cat dog house and he", ((18, 20), (0, 3), (4, 13)), answer=1)
    batch = collate(checkpoint, encode(checkpoint, [text]))
    assert batch.items[0].members == ((4,), (0,), (1, 2))
    pattern = torch.zeros(1, 3, 5, 5)
    pattern[0, 0, 4] = torch.tensor([0.4, 0.3, 0.3, 0, 0])  # A 0.4, B 0.6 in sum
    pattern[0, 1, 4] = torch.tensor([0.7, 0.2, 0.1, 0, 0])
    pattern[0, 2, 0, 4], pattern[0, 2, 1, 4], pattern[0, 2, 2, 4] = 0.3, 0.5, 0.2  # means: A 0.3, B 0.35
    tally = NameTally(1, 3)
    tally.begin(batch, torch.ones(1, 1))
    tally.add(0, pattern, batch)
    assert tally.hits["pronoun_to_name"][0, :2].tolist() == [1, 0]
    assert tally.hits["name_to_pronoun"][0, 2] == 1
    assert (tally.n, tally.nearer) == (1, 1.0)  # B begins three tokens away, A four
    tally.absorb(tally.state())
    assert (tally.n, tally.nearer, tally.hits["name_to_pronoun"][0, 2]) == (2, 2.0, 2)


def test_weights_belong_to_a_text_whatever_its_batch():
    together = text_weights(3, [7, 1, 2], 50)
    assert together.shape == (51, 3)
    assert (together[0] == 1).all()
    assert torch.equal(together[:, [1]], text_weights(3, [1], 50))
    assert not torch.equal(together[:, 0], together[:, 1])
    assert not torch.equal(together, text_weights(4, [7, 1, 2], 50))


def test_weights_are_poisson_with_mean_one():
    drawn = text_weights(0, range(200), 500)[1:]
    assert float(drawn.mean()) == pytest.approx(1, abs=0.01)
    assert float(drawn.var()) == pytest.approx(1, abs=0.02)
    assert float((drawn == 0).double().mean()) == pytest.approx(np.exp(-1), abs=0.01)


def test_samples_in_which_nothing_counts_are_left_out_of_the_error():
    values = torch.tensor([[1.0, torch.nan, torch.nan], [3.0, 2.0, torch.nan], [torch.nan, 6.0, 4.0]])
    found = standard_error(values)
    assert found[:2].tolist() == pytest.approx([2**0.5, 8**0.5])
    assert found[2].isnan()
