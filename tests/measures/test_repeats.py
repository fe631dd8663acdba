"""Induction and duplicate-token: masks, scores beside uniform attention, labels, and what no repeat means."""

import pytest
import torch

from attnviz import analyze
from attnviz.judge.verdicts import judge
from attnviz.measures.repeats import SEQUENCES, Needles, RepeatTally
from attnviz.measures.tallies import ordinary_ids
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.run.corpus import SampledAttention
from tests.support.hand_made import uniform_pattern
from tests.support.long_runs import quiet_loop
from tests.support.models import (
    CAUSAL_LOOKS_AT,
    bert_tokenizer,
    gpt2_tokenizer,
    hand_built_gpt2,
    sharp_bert,
    sharp_gpt2,
)
from tests.support.tolerances import SUMS_64
from tests.support.verified import context_of, measure, random_patterns, verified

TWICE = " ".join(["the cat saw ran away dog was house"] * 2)
"""Eight words, twice; every one of them is one token of the tests' tokenizers."""


def test_a_gpt2_head_built_for_induction_gets_its_label():
    heads = [
        lambda query: [query - 7] if query >= 8 else [0],
        lambda query: [query - 8] if query > 8 else [0],
        CAUSAL_LOOKS_AT["previous-token"],
        CAUSAL_LOOKS_AT["broad"],
    ]
    found = analyze(TWICE, model=hand_built_gpt2([heads]), tokenizer=gpt2_tokenizer(), syntax=False)
    assert [head.label for head in found.heads] == ["induction", "duplicate-token", "previous-token", "broad"]
    named = {verdict.name: verdict for verdict in found.heads[0].verdicts}
    assert named["induction"].n == 7  # to GPT-2 "the" at the very beginning is another token than " the"
    assert named["induction"].on_repeats == pytest.approx(1, abs=0.01)
    assert (named["duplicate-token"].on_repeats, named["duplicate-token"].holds) == (pytest.approx(0, abs=0.01), False)


def at_copies(tokens, after=0):
    """A head that attends to the latest copy of its token, or to what followed it; else to the first position."""
    latest = [max((p + after for p in range(q) if tokens[p] == tokens[q]), default=0) for q in range(len(tokens))]
    return torch.eye(len(tokens))[latest]


def after_copies(tokens):
    return at_copies(tokens, after=1)


def after_first_copies(tokens):
    firsts = [tokens.index(token) for token in tokens]
    return torch.eye(len(tokens))[[first + 1 if first < q else 0 for q, first in enumerate(firsts)]]


def itself(tokens):
    return torch.eye(len(tokens))


def for_the_alone(tokens):
    """A head that does so for "the"; other tokens look at themselves."""
    pattern = after_copies(tokens)
    for place, token in enumerate(tokens):
        if token != "the":
            pattern[place] = torch.eye(len(tokens))[place]
    return pattern


@pytest.mark.parametrize(
    ("text", "head", "name", "expected"),
    [
        ("x the cat saw the dog and the man in the house of the boy", after_copies, "induction", (1, 4, 0, False)),
        ("x the cat ran because the cat sat while the cat ate", after_copies, "induction", (1, 4, 1, False)),
        ("x the cat saw a dog then the cat saw a man", after_copies, "induction", (1, 4, 3, True)),
        ("x the cat ran so the cat ran", after_copies, "induction", (1, 3, 2, True)),
        ("x the cat ran so the cat ran x ran x", after_first_copies, "induction", (1, 4, 2, True)),
        ("very very very very good and really really really really bad", itself, "induction", (0, 4, 0, False)),
        ("x the cat ran and the cat ran the dog the cow the cat the man", for_the_alone, "induction",
         (0.625, 8, 1, False)),
        ("x the cat the dog the man the cow", at_copies, "duplicate-token", (1, 3, 1, False)),
    ],
)  # fmt: skip
def test_a_role_rests_on_two_different_tokens_that_come_back_with_what_followed_them(text, head, name, expected):
    """Olsson et al. 2022 measure on repeated sequences, in which every token does; "the" alone shows nothing."""
    tokens = text.split()
    context = context_of([token == "x" for token in tokens], causal=True, tokens=tokens)
    statistics = {name: values[0] for name, values in measure(verified(head(tokens)), context).items()}
    (found,) = [each for each in judge(statistics, context, [], HeadId(0, 0)) if each.name == name]
    assert (pytest.approx(found.on_repeats), found.n, found.types, found.holds) == expected


def sequences_of(checkpoint, pattern_of, batch_size=5, seed=0):
    """What a tally finds in patterns made from token ids, and the ids of the sequences that repeat as a whole."""
    seen, told = [], {}

    def run(_, batch, visit):
        ids = batch.inputs["input_ids"]
        if "repeats" not in told or told["repeats"] < SEQUENCES:  # those with needles come after them
            seen.extend(ids.tolist())
        patterns = torch.stack([pattern_of(row) for row in ids])[:, None].expand(-1, checkpoint.n_heads, -1, -1)
        for layer in range(checkpoint.n_layers):
            visit(layer, patterns)

    def tell(name, done, _):
        told[name] = done

    tally = RepeatTally(checkpoint, seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SampledAttention, "run", run)
        tally.measure(quiet_loop(checkpoint, batch_size=batch_size, progress=tell))
    assert set(told.values()) == {SEQUENCES}
    return tally, sorted(seen)


def test_scores_on_random_sequences_are_those_of_a_plain_loop_and_of_uniform_attention_the_baseline(checkpoint):
    half, causal = 20, checkpoint.architecture.causal
    patterns = random_patterns(2 * half, n_heads=1, causal=causal)[0]
    scores = sequences_of(checkpoint, lambda _: patterns)[0].results().scores
    wanted = {
        "previous": [patterns[q, q - 1] for q in range(1, 2 * half)],
        "duplicate": [patterns[q, q - half] for q in range(half, 2 * half)],
        "induction": [patterns[q, q - half + 1] for q in range(half, 2 * half)],
    }
    even = sequences_of(checkpoint, lambda _: uniform_pattern(2 * half, causal))[0].results()
    assert ("retrieval" in even.baselines) == causal
    for name, weights in wanted.items():
        expected = float(torch.stack(weights).double().mean())
        assert scores[name].unique().tolist() == pytest.approx([expected], abs=SUMS_64)
        assert float(even.scores[name][0, 0, 0]) == pytest.approx(even.baselines[name])


def test_sequences_are_drawn_from_ordinary_tokens_and_by_the_seed_alone(checkpoint):
    tokenizer = gpt2_tokenizer() if checkpoint.architecture.causal else bert_tokenizer()
    make = sharp_gpt2 if checkpoint.architecture.causal else sharp_bert
    tokenizer.add_tokens(["[unused0]", "[unused99]", "ordinary"])
    with_rest = from_loaded(make(vocab_size=len(tokenizer) + 50), tokenizer)  # rows that no token has
    ordinary = ordinary_ids(with_rest)
    assert "ordinary" in tokenizer.convert_ids_to_tokens(ordinary)
    assert len(ordinary) == len(tokenizer) - 2 - len(set(tokenizer.all_special_ids))
    drawn, in_batches, by_seed = (
        sequences_of(with_rest, itself, **changes)[1] for changes in ({}, {"batch_size": 32}, {"seed": 1})
    )
    assert {token for row in drawn for token in row} <= set(ordinary)
    assert all(row[:20] == row[20:] for row in drawn)
    assert in_batches == drawn != by_seed


def needles_of(context, seed=0):
    return Needles(from_loaded(sharp_gpt2(n_positions=context), gpt2_tokenizer()), seed, SEQUENCES)


@pytest.mark.parametrize(("context", "needle"), [(6, 2), (40, 5), (100, 10)])
def test_a_needle_comes_once_more_at_the_end_and_nowhere_else(context, needle):
    needles = needles_of(context)
    assert (needles.measurable, needles.context, needles.needle) == (True, context, needle)
    starts, drawn = needles.starts(list(range(SEQUENCES))).tolist(), needles.drawn().tolist()
    assert (starts[0], starts[-1]) == (1, context - 2 * needle - 1)  # filler before it, and before its copy
    assert starts == sorted(starts)
    for start, row in zip(starts, drawn, strict=True):
        assert len(row) == context
        assert row[start : start + needle] == row[-needle:]
        assert len(set(row[-needle:])) == needle
        assert not set(row[-needle:]) & {*row[:start], *row[start + needle : -needle]}
    assert needles_of(context).drawn().tolist() == drawn != needles_of(context, seed=1).drawn().tolist()


def test_retrieval_counts_the_tokens_to_come_that_get_the_largest_attention():
    """Head 0 looks at the token to come, head 1 at the copy of its own, head 2 at the right one for two of four."""
    needles = needles_of(40)
    (start,) = needles.starts([7]).tolist()
    pattern = torch.full((1, 3, 40, 40), 0.01)
    for i in range(4):
        query = 40 - 5 + i
        pattern[0, 0, query, start + i + 1] = 0.02  # by however little
        pattern[0, 1, query, start + i] = 0.9
        pattern[0, 2, query, start + i + 1] = 0.5 if i < 2 else 0.4
        pattern[0, 2, query, start] = 0.4 if i < 2 else 0.5
    assert needles.retrieved(needles.largest(pattern), [7]).tolist() == [[1.0, 0.0, 0.5]]
    assert needles.uniform(None) == pytest.approx(sum(1 / seen for seen in (36, 37, 38, 39)) / 4)
    starts = needles.starts(list(range(SEQUENCES))).tolist()
    chances = [(start + i + 1 > 35 + i - 10) / 10 for start in starts for i in range(4)]  # with a window of 10 tokens
    assert 0 < needles.uniform(10) == pytest.approx(sum(chances) / len(chances))


def test_only_causal_models_with_room_for_a_needle_are_asked():
    encoder = from_loaded(sharp_bert(), bert_tokenizer())
    assert not needles_of(5).measurable
    assert not Needles(encoder, 0, SEQUENCES).measurable
    found = RepeatTally(encoder, 0).results()
    assert ("retrieval" in found.scores, found.needle, len(list(found.sequences()))) == (False, None, 1)
