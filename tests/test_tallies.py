"""What is counted over a corpus equals what is measured text by text."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnviz.attention.capture import capture_layers
from attnviz.commands.profile.instances import NameTally, RelationTally, between_spans
from attnviz.commands.profile.tallies import StatisticsTally
from attnviz.corpora.batches import Text, batches, collate, encode
from attnviz.corpora.bootstrap import standard_error, text_weights
from attnviz.model.checkpoint import from_loaded
from attnviz.model.tokens import merge_pattern
from attnviz.patterns.registry import PATTERNS, SHARES, PatternSpec
from attnviz.patterns.syntax import Arc
from tests import independent
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.test_batches import sentence

MODELS = {"bert": (sharp_bert, bert_tokenizer), "gpt2": (sharp_gpt2, gpt2_tokenizer)}
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


@pytest.fixture(params=MODELS)
def model(request):
    make, tokenizer = MODELS[request.param]
    return make(), tokenizer()


def run(checkpoint, texts, tally, batch_size, replicates=3, seed=0):
    """Every text gets its place in the list for its number."""
    numbered = (replace(text, number=number) for number, text in enumerate(texts))
    for batch in batches(checkpoint, numbered, batch_size):
        tally.begin(batch, text_weights(seed, [item.source.number for item in batch.items], replicates))
        capture_layers(
            checkpoint,
            batch.inputs,
            lambda record, batch=batch: tally.add(record.layer, record.pattern.double(), batch),
        )


@pytest.mark.parametrize("batch_size", [1, 3])
def test_statistics_are_means_and_ratios_over_the_whole_corpus(model, batch_size):
    """Against the independent loops of one text at a time, weighted by positions or by attention on content."""
    checkpoint = from_loaded(*model)
    tally = StatisticsTally(3, 4, checkpoint.architecture.causal, replicates=3)
    run(checkpoint, TREES, tally, batch_size)
    found, _ = tally.results()
    baselines = tally.baselines()
    sums, weights = Counter(), Counter()
    for text in TREES:
        sink = independent.sink_flags(*model, text.text, None)
        n, content = len(sink), sink.count(False)
        patterns = independent.attentions(*model, text.text, None)
        for layer, head, numbers in independent.heads(*model, text.text):
            pattern = patterns[layer, head]
            keep = [i for i, is_sink in enumerate(sink) if not is_sink]
            mass = pattern[np.ix_(keep, keep)].sum()
            for name in ("entropy", "distance", "confidence", "sink", *SHARES):
                weight = n if name in ("entropy", "distance", "confidence") else content if name == "sink" else mass
                sums[name, layer, head] += weight * (numbers[name] or 0.0)
                weights[name, layer, head] += weight
            if (layer, head) == (0, 0):
                for name in SHARES:
                    sums["baseline", name] += content * (numbers["baseline"][name] or 0.0)
                sums["baseline", "entropy"] += n * numbers["entropy_uniform"]
                weights["content"] += content
                weights["n"] += n
    for name, values in found.items():
        for layer in range(3):
            for head in range(4):
                if name == "next" and checkpoint.architecture.causal:
                    assert values[layer, head].isnan()
                    continue
                expected = sums[name, layer, head] / weights[name, layer, head]
                assert float(values[layer, head]) == pytest.approx(expected, abs=1e-5), name
    for name in SHARES:
        if name == "next" and checkpoint.architecture.causal:
            assert baselines[name] is None
        else:
            assert baselines[name] == pytest.approx(sums["baseline", name] / weights["content"])
    assert baselines["entropy"] == pytest.approx(sums["baseline", "entropy"] / weights["n"])
    assert tally.n_content == weights["content"]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_new_pattern_that_reads_the_text_is_counted_text_by_text(model, monkeypatch, batch_size):
    """Attention to tokens with an ``a``, against a loop over single texts."""
    spec = PatternSpec(
        "with_a", "with-a", lambda text: torch.tensor([["a" in label for label in text.labels]] * text.n),
        "tokens with an a", "other", reads_text=True,
    )  # fmt: skip
    monkeypatch.setattr("attnviz.commands.profile.tallies.PATTERNS", (*PATTERNS, spec))
    checkpoint = from_loaded(*model)
    tally = StatisticsTally(3, 4, checkpoint.architecture.causal, replicates=3)
    run(checkpoint, TREES, tally, batch_size)
    on_a, on_content, uniform, n_content = torch.zeros(3, 4), torch.zeros(3, 4), 0.0, 0
    for text in TREES:
        (item,) = encode(checkpoint, [text])
        content = torch.tensor([not sink for sink in item.sink])
        with_a = torch.tensor(["a" in piece for piece in item.pieces]) & content
        rows = torch.from_numpy(independent.attentions(*model, text.text, None))[:, :, content]
        on_a += rows[..., with_a].sum((-1, -2))
        on_content += rows[..., content].sum((-1, -2))
        for query in content.nonzero().flatten().tolist():
            end = query + 1 if checkpoint.architecture.causal else None
            uniform += float(with_a[:end].sum() / content[:end].sum())
        n_content += int(content.sum())
    torch.testing.assert_close(tally.results()[0]["with_a"].float(), on_a / on_content, atol=1e-5, rtol=1e-5)
    assert tally.baselines()["with_a"] == pytest.approx(uniform / n_content, rel=1e-5)


def test_the_sink_baseline_is_the_share_of_sinks_among_the_keys(model):
    checkpoint = from_loaded(*model)
    tally = StatisticsTally(3, 4, checkpoint.architecture.causal, replicates=3)
    run(checkpoint, TREES[:1], tally, 1)
    if checkpoint.architecture.causal:
        assert tally.baselines()["sink"] == pytest.approx(np.mean([1 / (q + 1) for q in range(1, 5)]))
    else:
        assert tally.baselines()["sink"] == pytest.approx(2 / 7)


def test_standard_errors_are_those_of_a_bootstrap_over_texts(model):
    checkpoint = from_loaded(*model)
    tally = StatisticsTally(3, 4, checkpoint.architecture.causal, replicates=2000)
    texts = [text for text in TREES for _ in range(5)]
    run(checkpoint, texts, tally, 4, replicates=2000, seed=5)
    _, errors = tally.results()
    values = []
    for text in texts:
        one = StatisticsTally(3, 4, checkpoint.architecture.causal, replicates=3)
        run(checkpoint, [text], one, 1)
        values.append((one.results()[0]["entropy"][1, 2].item(), len(encode(checkpoint, [text])[0])))
    rng = np.random.default_rng(0)
    entropy, length = np.array(values).T
    drawn = rng.integers(len(texts), size=(4000, len(texts)))
    means = (entropy * length)[drawn].sum(1) / length[drawn].sum(1)
    assert float(errors["entropy"][1, 2]) == pytest.approx(means.std(), rel=0.15)


def test_errors_depend_on_the_seed_and_not_on_the_batches(model):
    checkpoint = from_loaded(*model)
    errors = []
    for seed, batch_size in ((1, 2), (1, 3), (2, 2)):
        tally = StatisticsTally(3, 4, checkpoint.architecture.causal, replicates=20)
        run(checkpoint, TREES, tally, batch_size, replicates=20, seed=seed)
        errors.append(tally.results()[1]["sink"])
    torch.testing.assert_close(errors[0], errors[1], atol=1e-6, rtol=1e-4)
    assert not torch.allclose(errors[0], errors[2], rtol=1e-2)


@pytest.mark.parametrize(
    "make", [lambda causal: StatisticsTally(3, 4, causal, replicates=3), lambda _: RelationTally(3, 4)]
)
def test_two_tallies_add_up_to_one_of_all_texts(model, make):
    checkpoint = from_loaded(*model)
    causal = checkpoint.architecture.causal
    whole, first, second = make(causal), make(causal), make(causal)
    numbered = [replace(text, number=number) for number, text in enumerate(TREES)]
    for tally, texts in ((whole, numbered), (first, numbered[:1]), (second, numbered[1:])):
        for text in texts:
            batch = collate(checkpoint, encode(checkpoint, [text]))
            tally.begin(batch, text_weights(0, [text.number], 3))
            capture_layers(checkpoint, batch.inputs, lambda r, t=tally, b=batch: t.add(r.layer, r.pattern.double(), b))
    first.absorb(second.state())
    torch.testing.assert_close(first.state(), whole.state())


@pytest.mark.parametrize("batch_size", [1, 4])
def test_relations_are_counted_as_a_plain_loop_counts_them(model, batch_size):
    checkpoint = from_loaded(*model)
    tally = RelationTally(3, 4)
    run(checkpoint, TREES, tally, batch_size)
    found = {relation.relation: relation for relation in tally.results()}
    arcs = Counter(name for text in TREES for arc in text.arcs for name in {arc.relation, arc.relation.split(":")[0]})
    assert {name: relation.n for name, relation in found.items()} == arcs
    assert found["nsubj"].n == 4  # nsubj:pass is a nsubj
    assert found["nsubj:pass"].n == 1
    hits = Counter()
    for text in TREES:
        members = encode(checkpoint, [text])[0].members
        for layer, patterns in enumerate(independent.attentions(*model, text.text, None)):
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
    tally = RelationTally(3, 4)
    run(checkpoint, [text], tally, 1)
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
