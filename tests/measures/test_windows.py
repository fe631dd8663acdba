"""Baselines of layers with a window: uniform attention there is over the window alone.

A model whose queries are all zero attends uniformly over what each layer lets it see. So each of its scores must be its
baseline; with the baseline of full causal rows it would not.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnviz import analyze, rollout
from attnviz.commands.heads.views import MAP
from attnviz.commands.profile.measure import profile_heads
from attnviz.figures.style import Style
from attnviz.inputs.prompt import Text
from attnviz.inputs.text import tokenize
from attnviz.measures.repeats import SEQUENCES, RepeatTally
from attnviz.measures.tallies import MeaningTally, StatisticsTally, mean_embedding
from attnviz.models.checkpoint import from_loaded
from attnviz.reference.attention import Chunk
from attnviz.run.processes import Process
from tests.support.corpora import count
from tests.support.llamas import WINDOW, sentencepiece_tokenizer, sharp_llama
from tests.support.long_runs import quiet_loop
from tests.support.tolerances import SUMS_32
from tests.support.verified import context_of

TEXT = "the cat that i saw ran away from the unbelievable dog"
TEXTS = [Text(TEXT, number=0), Text("the cat saw the dog in the house", number=1)]


@pytest.fixture(scope="module")
def uniform() -> Any:
    """A Gemma 2 that attends uniformly: over a window in layer 0, over all that precedes in layer 1."""
    tokenizer = sentencepiece_tokenizer()
    model = sharp_llama("gemma2", vocab_size=len(tokenizer))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    checkpoint = from_loaded(model, tokenizer)
    assert checkpoint.windows == (WINDOW, None)
    return checkpoint


def test_uniform_heads_of_a_corpus_score_their_baselines(uniform):
    tally: Any = count(StatisticsTally(uniform), uniform, TEXTS, 2)
    found = tally.estimates()
    for name in ("sink", "broad"):
        torch.testing.assert_close(found[name].scores, found[name].baseline, atol=SUMS_32, rtol=0)
    assert abs(float(found["sink"].baseline[0, 0, 0] - found["sink"].baseline[0, 1, 0])) > 0.02
    assert not found["long_range"].scores.any()  # uniform attention chooses no key
    assert float(found["previous"].baseline[0, 0, 0]) == pytest.approx(previous_share(uniform, WINDOW))
    assert float(found["previous"].baseline[0, 1, 0]) == pytest.approx(previous_share(uniform, 1000))
    table = tally.baselines()
    assert table["previous"] == pytest.approx((previous_share(uniform, WINDOW) + previous_share(uniform, 1000)) / 2)


def previous_share(checkpoint: Any, window: int) -> float:
    """By a plain loop: uniform attention to the previous token, among content in sight; the first token is a sink."""
    lengths = [len(tokenize(checkpoint, text.text)) for text in TEXTS]
    seen = [min(query, window) for n in lengths for query in range(1, n)]
    return sum(1 / n for n in seen if n > 1) / len(seen)


def test_cosines_within_a_window_have_its_baseline(uniform):
    baseline = count(MeaningTally(uniform), uniform, TEXTS, 2).results().baseline
    assert abs(float(baseline[0, 0, 0] - baseline[0, 1, 0])) > 1e-4
    table = uniform.model.get_input_embeddings().weight.detach().double() - mean_embedding(uniform)
    for layer, window in enumerate((WINDOW, 1000)):
        means = []
        for text in TEXTS:
            ids = tokenize(uniform, text.text).ids
            for query in range(1, len(ids)):
                keys = [k for k in range(1, query + 1) if k > query - window and ids[k] != ids[query]]
                cosines = [float(torch.cosine_similarity(table[ids[query]], table[ids[k]], dim=0)) for k in keys]
                means += [sum(cosines) / len(cosines)] if cosines else []
        assert float(baseline[0, layer, 0]) == pytest.approx(sum(means) / len(means), abs=SUMS_32)


def test_uniform_heads_score_their_baselines_on_repeats(uniform):
    tally = RepeatTally(uniform, 0)
    tally.measure(quiet_loop(uniform, process=Process(0, SEQUENCES // 2)))  # two of the sequences
    found = tally.results()
    for name in ("previous", "duplicate", "induction"):
        baseline = found.baselines[name].double().expand(2, 4)
        torch.testing.assert_close(found.scores[name][:: SEQUENCES // 2].mean(0), baseline, atol=SUMS_32, rtol=0)
    assert float(found.baselines["induction"][0]) == 0 < float(found.baselines["induction"][1])


def test_a_profile_gives_each_layer_its_own_baselines(uniform, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(text.text for text in TEXTS))
    found = profile_heads(uniform, [corpus], syntax=False, control=False)
    local = {role.id.layer: role.baseline for role in found.roles if role.role == "local"}
    assert local[0] > local[1] + 0.1


def test_a_rollout_of_uniform_heads_is_that_of_uniform_attention(uniform):
    found = rollout(TEXT, uniform, residual=0.3)
    torch.testing.assert_close(found.means[1].double(), found.last.uniform, atol=SUMS_32, rtol=0)
    torch.testing.assert_close(found.weights[1].double(), found.last.uniform_rollout, atol=SUMS_32, rtol=0)
    first = rollout(TEXT, uniform, layer=0)
    torch.testing.assert_close(first.means[0].double(), first.last.uniform, atol=SUMS_32, rtol=0)
    assert float(first.last.uniform[-1, 0]) == 0


@pytest.mark.parametrize("statistic", ["entropy", "sink"])
def test_a_map_marks_what_uniform_attention_of_its_layers_gives(uniform, statistic):
    found = analyze(TEXT, uniform, syntax=False)
    (plan,) = MAP.plans(found, found._choices(Style(), {"maps": [statistic]}))
    (drawn,) = plan.maps
    assert drawn.reference[0] == pytest.approx(drawn.values.mean(), abs=SUMS_32)
    assert drawn.norm.vmax >= drawn.values.max() - 1e-6 > drawn.reference[0] + 0.01


def test_uniform_heads_score_their_baselines_in_chunks():
    tokenizer = sentencepiece_tokenizer()
    model = sharp_llama("llama4_text", vocab_size=len(tokenizer), attention_bias=False)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    checkpoint = from_loaded(model, tokenizer)
    tally: Any = count(StatisticsTally(checkpoint), checkpoint, TEXTS, 2)
    found = tally.estimates()
    for name in ("sink", "broad"):
        torch.testing.assert_close(found[name].scores, found[name].baseline, atol=SUMS_32, rtol=0)
    result = analyze(TEXT, checkpoint, syntax=False)
    assert [context.window for context in result.windowed.values()] == [WINDOW]
    for head in result.heads[:4]:
        row = result.pattern(head.id)[WINDOW + 2]
        assert row.tolist() == pytest.approx([0.0] * WINDOW + [1 / 3] * 3 + [0.0] * (len(row) - WINDOW - 3))


def test_words_see_each_other_where_any_of_their_tokens_share_a_chunk():
    members = ((0,), (1, 2, 3), (4,), (5, 6), (7, 8), (9,))  # chunks of 3: 0-2, 3-5, 6-8, 9
    context = replace(context_of([False] * 6, True, members=members), window=Chunk(3))
    seen = [[0], [0, 1], [1, 2], [1, 2, 3], [3, 4], [5]]
    assert [row.nonzero()[:, 0].tolist() for row in context.allowed_rows(0, 6)] == seen
