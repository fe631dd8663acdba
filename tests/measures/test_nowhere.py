"""Learned sinks: what a head attends to no token with is counted once, everywhere, and in no other model."""

import csv
import json
import math
from dataclasses import replace

import pytest
import torch

import attnviz
from attnviz.commands.rollout import rolled_out
from attnviz.measures.differences import mean_differences
from attnviz.measures.statistics import NOWHERE
from attnviz.reference.attention import attention_pattern, nowhere, uniform_pattern
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.tolerances import SUMS_32
from tests.support.verified import context_of, measure, verified

TEXT = "the cat that i saw ran away."


def analysed(family: str = "gpt_oss", **options):
    model, tokenizer = sharp_llama(family), sentencepiece_tokenizer()
    return attnviz.analyze(TEXT, model, tokenizer=tokenizer, syntax=False, **options)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_sink_of_ln_n_beside_n_alike_scores_takes_half(n):
    sinks = torch.tensor([math.log(n), -torch.inf, math.log(3 * n)], dtype=torch.float64)
    pattern = attention_pattern(torch.zeros(3, n, n, dtype=torch.float64), torch.ones(n, n, dtype=torch.bool), sinks)
    torch.testing.assert_close(nowhere(pattern)[:, 0], torch.tensor([0.5, 0.0, 0.75], dtype=torch.float64))
    torch.testing.assert_close(pattern[0, 0], torch.full((n,), 0.5 / n, dtype=torch.float64))
    context = replace(context_of([False] * n), learned_sinks=True)
    assert measure(verified(pattern, torch.float64), context)["entropy"][0] == pytest.approx(
        math.log(2) + math.log(n) / 2
    )
    unseen = attention_pattern(torch.zeros(1, 1, n), torch.zeros(1, n, dtype=torch.bool), torch.tensor([-5.0]))
    assert unseen.abs().max() == 0
    even = uniform_pattern(torch.arange(n) < torch.tensor([[n], [1]]), learned_sinks=True)
    assert nowhere(even).tolist() == pytest.approx([1 / (n + 1), 1 / 2])


@pytest.mark.parametrize("words", [False, True])
def test_statistics_and_files_have_it_and_shares_add_up(words, tmp_path):
    result = analysed(words=words)
    result.save(tmp_path, figures=())
    document = json.loads((tmp_path / "heads.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader((tmp_path / "heads.csv").read_text(encoding="utf-8").splitlines()))
    content = ~torch.tensor(result.units.sink)
    for head, entry, row in zip(result.heads, document["heads"], rows, strict=True):
        pattern = result.pattern(head.id).double()
        gone = 1 - pattern.sum(-1)
        on_content = float(pattern[content][:, content].sum(-1).mean())
        entropy = float(torch.special.entr(torch.cat([pattern, gone[:, None]], -1)).sum(-1).mean())
        expected = {NOWHERE: float(gone[content].mean()), "entropy": entropy}
        expected["sink"] = 1 - on_content - expected[NOWHERE]
        assert {name: entry[name] for name in expected} == pytest.approx(expected, abs=SUMS_32)
        assert float(row[NOWHERE]) == pytest.approx(entry[NOWHERE])
        sink, broad = (next(each for each in head.verdicts if each.name == name) for name in ("sink", "broad"))
        assert sink.score == pytest.approx(entry[NOWHERE] + entry["sink"])
        assert broad.score <= 1 + 1e-6
    assert 0.05 < sum(entry[NOWHERE] for entry in document["heads"]) / len(rows) < 0.95
    if not words:
        for head in attnviz.head_outputs(TEXT, result.checkpoint).heads:
            assert head.sink == pytest.approx(result.head(head.id).statistics["sink"], abs=SUMS_32)
    assert all(NOWHERE not in entry for entry in analysed("qwen3_moe").document()["heads"])


def test_distances_count_it_as_an_outcome():
    half, other = torch.tensor([[[[0.5, 0.0]]], [[[0.0, 0.5]]]])
    lost, kept = torch.tensor([[[[0.0, 0.0]]], [[[1.0, 0.0]]]])  # all nowhere, all on a token
    for first, second, expected in ((half, other, (math.log(2) / 2, 0.5)), (lost, kept, (math.log(2), 1))):
        blocks, real = [(0, first[None], second[None])], torch.ones(1, 1, dtype=torch.bool)
        found = mean_differences(blocks, real, learned_sinks=True)
        assert tuple(map(float, found)) == pytest.approx(expected)


def test_what_goes_nowhere_carries_nothing():
    half = torch.full((1, 2, 2), 0.25)
    assert next(rolled_out(half, learned_sinks=True)).sum(-1).tolist() == [0.75, 0.75]
    assert next(rolled_out(half)).sum(-1).tolist() == [1.0, 1.0]
    text = analysed()
    assert float(attnviz.rollout(TEXT, text.checkpoint).weights[-1].sum(-1).max()) < 1
    assert attnviz.compare(text, replace(text)).heads[0].distance == 0
