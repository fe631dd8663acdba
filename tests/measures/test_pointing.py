"""Pointing to the rarest token and to neighbours: against a plain loop, and heads that do it by design."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import attnviz
from attnviz.errors import CorpusError, OutputError
from attnviz.inputs.batches import batches
from attnviz.inputs.frequencies import read_frequencies, token_counts
from attnviz.inputs.reading import open_corpus
from attnviz.measures.pointing import PointingTally
from attnviz.models.checkpoint import Checkpoint, from_loaded
from tests.support.corpora import count, sentence, sentences
from tests.support.models import LOOKS_AT, bert_tokenizer, hand_built_bert, many_words_tokenizer, word_tokenizer
from tests.support.recorded import own_patterns

TEXTS = ["the cat saw the dog", "a dog ran away and the cat", "he was in the house that i saw", "the the a the"]


@pytest.mark.parametrize("common", [0, 4])
def test_scores_and_guesses_are_those_of_a_plain_loop(checkpoint: Checkpoint, common: int) -> None:
    causal, texts = checkpoint.architecture.causal, [sentence(text.split()) for text in TEXTS]
    singles = list(batches(checkpoint, texts, 1))
    content = [[at for at, sink in enumerate(batch.items[0].sink) if not sink] for batch in singles]
    counts = torch.zeros(400, dtype=torch.long)
    for batch, places in zip(singles, content, strict=True):
        for at in places:
            counts[batch.items[0].ids[at]] += 1
    tally = count(PointingTally(checkpoint, lambda: counts, common), checkpoint, texts, batch_size=4)
    frequent = counts.sort(descending=True).values[common]
    hits, near = torch.zeros(2, 2, checkpoint.n_layers, checkpoint.n_heads)
    n, chance, n_texts, offsets = 0, 0.0, 0, Counter[int]()
    for batch, places in zip(singles, content, strict=True):
        number = [int(counts[id]) for id in batch.items[0].ids]
        ranked = sorted({number[at] for at in places})
        n_texts += ranked[0] <= frequent
        patterns = torch.cat(list(own_patterns(checkpoint, batch.inputs).values()))
        for query in places:
            keys = [at for at in places if at <= query or not causal]
            rare = [at for at in keys if number[at] == ranked[0] <= frequent]
            offsets.update(at - query for at in rare if 0 < abs(at - query) <= 8)
            two = [at for at in keys if rare and number[at] in ranked[:2]]
            n, chance = n + bool(rare), chance + len(rare) / len(keys)
            largest = torch.tensor(keys)[patterns[:, :, query, keys].argmax(-1)]
            hits += torch.stack([torch.isin(largest, torch.tensor(each)) for each in (rare, two)])
            near += torch.stack([largest == query - 1, largest == query + 1])
    assert n > 0
    for target, expected in enumerate(hits):
        found = tally.rare(target)
        torch.testing.assert_close(found.scores[0], (expected / n).double())
        assert (int(found.n[0, 0]), found.texts) == (n, n_texts)
    assert float(tally.rare(0).baselines["uniform attention"].flatten()[0]) == pytest.approx(chance / n)
    of_offset = float(tally.rare(0).baselines["fixed offset"].flatten()[0])
    assert of_offset * n == pytest.approx(max(offsets.values())) == offsets[tally.rare_offset]
    torch.testing.assert_close(tally.at_neighbours(), (near / sum(map(len, content))).double())


def rare_texts(path: Path, n_texts: int = 120) -> Path:
    """The fourth word of each text, another one in each, is rarer than all others."""
    lines = [
        ["w1", "w2", "w3", f"w{600 + text}", *(f"w{(7 * text + 3 * at) % 600}" for at in range(15))]
        for text in range(n_texts)
    ]
    path.write_text("\n".join(map(" ".join, lines)) + "\n", encoding="utf-8")
    return path


def pointing(*heads: Any) -> Checkpoint:
    return from_loaded(hand_built_bert([heads], vocab_size=len(many_words_tokenizer())), many_words_tokenizer())


def test_the_head_that_points_to_the_rarest_token_gets_the_role(tmp_path: Path) -> None:
    model = pointing(lambda query: [4], LOOKS_AT["previous-token"], LOOKS_AT["broad"], LOOKS_AT["sink"])
    profile = attnviz.profile_heads(model, [rare_texts(tmp_path / "rare.txt")], examples=2, syntax=False)
    assert profile is not None
    found = {str(role.id): role for role in profile.roles if role.role == "rare-word"}
    assert {id for id, role in found.items() if role.passed} == {"L0H0"}
    assert (found["L0H0"].score, found["L0H0"].texts) == (1, 120)
    assert found["L0H0"].baseline < 0.1
    (example,) = [each for each in profile.examples if each.role == "rare-word"]
    assert example.best[0].key.text[:2] in ("w6", "w7")


@pytest.mark.draws
def test_a_list_says_which_token_is_the_rarest_and_a_run_of_another_list_is_not_resumed(tmp_path: Path) -> None:
    model = pointing(lambda query: [4], lambda query: [2], LOOKS_AT["broad"])
    corpus, listed, unfinished = rare_texts(tmp_path / "rare.txt"), tmp_path / "list.txt", tmp_path / "unfinished"
    counts = {f"w{number}": 9 - (number == 2) for number in range(800)}
    listed.write_text("".join(f"{word}\t{count}\n" for word, count in counts.items()), encoding="utf-8")

    def shares(frequencies: Path | None) -> list[float]:
        options: Any = {"control": False, "syntax": False, "examples": 0, "unfinished": unfinished}
        found = attnviz.profile_heads(model, [corpus], frequencies=frequencies, **options)
        assert found is not None
        roles = [role for role in found.roles if role.role == "rare-word"]
        return [role.score for role in sorted(roles, key=lambda role: role.id)]

    assert shares(listed)[:2] == [0, 1]
    with pytest.raises(OutputError, match="frequencies"):
        shares(None)
    unfinished.unlink()
    assert shares(None)[:2] == [1, 0]


@pytest.mark.parametrize(
    ("tokenizer", "counts"),
    [
        (bert_tokenizer(), {"dog": 6, "##s": 5, "cat": 0.5, "ran": 0, ",": math.inf}),
        (word_tokenizer(), {"Monday": 7, "cat": 0.5, "Friday": 0, ",": math.inf}),
    ],
)
def test_a_word_counts_for_its_pieces_with_a_capital_and_unlisted_punctuation_is_never_rare(
    tokenizer: PreTrainedTokenizerFast, counts: dict[str, float], tmp_path: Path
) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("word count\ndogs 5\ncat\t0.5\ndog 1\nmonday 7e0\n", encoding="utf-8")
    model = from_loaded(hand_built_bert([[LOOKS_AT["broad"]] * 2], vocab_size=len(tokenizer)), tokenizer)
    found = token_counts(model, [], None, read_frequencies(listed))
    assert {token: float(found[tokenizer.convert_tokens_to_ids(token)]) for token in counts} == counts


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("the 5\nhouse\n", ":2"),
        ("the 5\nhouse many\n", ":2"),
        ("the 5\nhouse -1\n", ":2"),
        ("the -5\n", ":1"),
        ("\n", ""),
        (None, ""),
    ],
)
def test_a_list_that_is_none_is_told(content: str | None, place: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=f"a.txt{place}"):
        read_frequencies(tmp_path / "a.txt")


def test_tokens_are_counted_in_content_alone_up_to_the_limit(checkpoint: Checkpoint, tmp_path: Path) -> None:
    corpus = open_corpus(sentences(tmp_path / "a.txt", 50))
    counts = [token_counts(checkpoint, [corpus], limit) for limit in (None, 10)]
    words = (tmp_path / "a.txt").read_text(encoding="utf-8").split()
    first = 50 if checkpoint.architecture.causal else 0  # the first token of a causal model is a sink
    assert int(counts[0].sum()) >= len(words) - first
    assert int(counts[1].sum()) < int(counts[0].sum())
    assert int(counts[0][checkpoint.tokenizer.all_special_ids].sum()) == 0
