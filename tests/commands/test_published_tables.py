"""Tables of papers: what models built by hand do is found, untrained ones show nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

import attnviz
from attnviz.commands.claims import CheckedClaim
from attnviz.commands.papers import gu_2024
from attnviz.commands.papers.table import PaperRun
from attnviz.errors import AttnvizError
from attnviz.measures.successors import ordinal_sequences
from attnviz.models.checkpoint import Checkpoint, from_loaded
from tests.support.corpora import WORDS, sentences
from tests.support.models import (
    LOOKS_AT,
    bert_tokenizer,
    gpt2_tokenizer,
    hand_built_bert,
    hand_built_gpt2,
    many_words_tokenizer,
    sharp_gpt2,
    word_tokenizer,
)


def texts(path: Path, n_texts: int, n_words: int) -> Path:
    """Texts of so many words, each another one."""
    words = [
        [WORDS[(7 * text + 3 * at + at * at * text) % len(WORDS)] for at in range(n_words)] for text in range(n_texts)
    ]
    path.write_text("\n".join(map(" ".join, words)) + "\n", encoding="utf-8")
    return path


def rows(model: Checkpoint, name: str, *corpora: Path, **options: Any) -> dict[str, CheckedClaim]:
    """The rows of a table by what they measure."""
    found = attnviz.check(corpora, model, published=name, **options)
    return {each.claim.what: each for each in found.claims if each.claim.kind == "table"}


def twenty(query: int) -> list[int]:
    """The first 20 of 64 queries look at the first token: 0.31, and 0.297 if the first did not count."""
    return [0] if query < 20 else [query]


def nineteen(query: int) -> list[int]:
    return [0] if query < 19 else [query]


def test_heads_that_rest_on_the_first_token_are_counted_and_the_first_query_is(tmp_path: Path) -> None:
    heads = [LOOKS_AT["sink"], LOOKS_AT["previous-token"], twenty, nineteen, LOOKS_AT["broad"]]
    model = from_loaded(hand_built_gpt2([heads], 64), gpt2_tokenizer())
    found = rows(model, "gu-2024", texts(tmp_path / "a.txt", 100, 70))
    (rate,) = found.values()
    assert (rate.measured, rate.untrained, rate.verdict, rate.n) == (pytest.approx(0.4), 0, "holds", 100)
    few = rows(model, "gu-2024", texts(tmp_path / "b.txt", 20, 70))["sink rate"]
    assert (few.verdict, few.measured) == ("cannot be decided", pytest.approx(0.4))


def successor_model() -> Any:
    """Layer 0's network passes on what a token is; of layer 1's heads L1H0 writes its successor, L1H1 itself."""
    tokenizer = word_tokenizer()
    n = len(tokenizer)
    model: Any = GPT2LMHeadModel(
        GPT2Config(vocab_size=n, n_embd=2 * n, n_layer=2, n_head=2, n_inner=n, activation_function="relu",
                   bos_token_id=0, eos_token_id=0, tie_word_embeddings=True, n_positions=32)
    ).eval()  # fmt: skip
    following = torch.zeros(n, n)
    for each in ordinal_sequences(tokenizer):
        for first, second in each.ids[each.pairs].tolist():
            following[first, second] = 1
    with torch.no_grad():
        model.transformer.wte.weight.copy_(torch.eye(n, 2 * n))
        first, second = model.transformer.h
        first.mlp.c_fc.weight.copy_(torch.eye(2 * n, n))
        first.mlp.c_proj.weight.copy_(torch.eye(n, 2 * n))
        second.attn.c_attn.weight[:, 4 * n :] = torch.cat([torch.eye(2 * n, n)] * 2, 1)
        second.attn.c_proj.weight.copy_(torch.cat([torch.cat([following, torch.eye(n)]), torch.zeros(2 * n, n)], 1))
    return model


@pytest.mark.draws
def test_a_successor_head_is_found_and_without_the_first_network_it_is_not() -> None:
    model = successor_model()
    found = rows(from_loaded(model, word_tokenizer()), "gould-2023")
    best = found["successors, the best head"]
    assert (best.claim.head, best.verdict, best.n) == ("L1H0", "holds", 290)
    assert best.measured == 1
    assert max(best.baseline or 1, best.untrained or 1) < 0.2
    assert (found["of days"].measured, found["of days"].n) == (1, 7)
    assert (found["successor heads"].measured, found["successor heads"].untrained) == (1, 0)
    heads = {str(head.id): head for head in attnviz.circuits(model, tokenizer=word_tokenizer()).heads}
    assert heads["L1H0"].successor == best.measured
    assert heads["L1H1"].successor == 0
    with torch.no_grad():
        model.transformer.h[0].mlp.c_proj.weight.zero_()
    assert rows(from_loaded(model, word_tokenizer()), "gould-2023")["successors, the best head"].verdict == "fails"


SUBJECTS = {2: 5, 3: 8, 6: 7}
"""From the place of a word to that of its head, which no one offset finds."""


def rare_trees(path: Path, n_sentences: int = 130) -> Path:
    """Sentences of ten words with three subjects, and at the fourth place a word that is nowhere else."""
    lines = []
    for sentence in range(n_sentences):
        for place in range(1, 11):
            word = 600 + sentence if place == 4 else (10 * sentence + place) % 560
            to, relation = (
                (SUBJECTS[place], "nsubj")
                if place in SUBJECTS
                else (0 if place == 1 else 1, "root" if place == 1 else "dep")
            )
            lines.append(f"{place}\tw{word}\t_\t_\t_\t_\t{to}\t{relation}\t_\t_")
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_positional_syntactic_and_rare_word_heads_are_those_built_so(tmp_path: Path) -> None:
    pytest.importorskip("conllu", reason="needs the extra profile")
    heads = [lambda query: [4], LOOKS_AT["next-token"], lambda query: [SUBJECTS.get(query, query)], LOOKS_AT["broad"]]
    tokenizer = many_words_tokenizer()
    model = from_loaded(hand_built_bert([heads], vocab_size=len(tokenizer)), tokenizer)
    found = rows(model, "voita-2019", rare_trees(tmp_path / "a.conllu"))
    for name in ("positional heads", "syntactic heads"):
        assert (found[name].measured, found[name].untrained, found[name].verdict) == (0.25, 0, "holds")
    rarest = found["rarest token, the best head of the first layer"]
    assert (rarest.claim.head, rarest.measured, rarest.verdict, rarest.n) == ("L0H0", 1, "holds", 1300)
    assert (found["one of the two rarest"].measured, found["rare-word heads"].measured) == (1, 0.25)
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"w{number} {99 if number >= 600 else 9}\n" for number in range(800)), encoding="utf-8")
    by_list = rows(model, "voita-2019", tmp_path / "a.conllu", frequencies=listed)
    assert by_list["rarest token, the best head of the first layer"].claim.head != "L0H0"
    without = rows(model, "voita-2019", texts(tmp_path / "a.txt", 40, 20))
    assert [without[name].verdict for name in ("syntactic heads", "rarest token")] == ["cannot be decided"] * 2


def test_surface_patterns_are_those_of_heads_built_so(tmp_path: Path) -> None:
    names = ("previous-token", "next-token", "current-token", "sink")
    first = [*(LOOKS_AT[name] for name in names), lambda query: [20]]
    model = from_loaded(hand_built_bert([first, [lambda query: [21]] * 5]), bert_tokenizer())
    path = texts(tmp_path / "a.txt", 120, 19)
    path.write_text(path.read_text(encoding="utf-8").replace("\n", " .\n"), encoding="utf-8")
    found = rows(model, "clark-2019", path)
    counts = {name.partition(": ")[2]: row.measured for name, row in found.items() if name.startswith("heads")}
    entropy = counts.pop("entropy by that of uniform attention")
    assert counts == dict.fromkeys(["previous token", "next token", "token itself", "[CLS]", "period or comma"], 1) | {
        "[SEP]": 5
    }
    assert entropy == 0
    for name in ("[SEP]", "[SEP] from [SEP]"):
        row = found[f"mean attention to {name}, layer 1"]
        assert (row.measured, row.verdict) == (pytest.approx(1, abs=0.01), "holds")
        assert row.untrained == pytest.approx(1 / 22, abs=0.01)
    causal = rows(from_loaded(sharp_gpt2(), gpt2_tokenizer()), "clark-2019", sentences(tmp_path / "b.txt"))
    assert not [name for name in causal if "next" in name or "[SEP]" in name]


@pytest.mark.parametrize(
    ("name", "n_words"),
    [
        ("gould-2023", 0),
        *(
            pytest.param(*table, marks=pytest.mark.thorough)
            for table in (("gu-2024", 70), ("voita-2019", 20), ("clark-2019", 20))
        ),
    ],
)
def test_no_claim_holds_of_random_weights(name: str, n_words: int, tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    model = sharp_gpt2(model_class=GPT2LMHeadModel, n_positions=80, vocab_size=len(tokenizer))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.02)
    corpora = [texts(tmp_path / "a.txt", 100, n_words)] if n_words else []
    found = attnviz.check(corpora, from_loaded(model, tokenizer), published=name)
    assert found.count("holds") == 0
    assert found.exit_code in (1, 3)


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ({"untrained": 0.3}, "holds"),
        ({"untrained": 0.3, "at_least": 0.4}, "holds"),
        ({"untrained": 0.3, "few": "1 text"}, "cannot be decided"),
        ({"untrained": 0.5}, "cannot be decided"),
        ({"untrained": 0.1, "baseline": 0.5}, "cannot be decided"),
        ({"untrained": 0.1, "at_least": 0.5}, "cannot be decided"),
        ({"untrained": 0.6}, "fails"),
        ({"baseline": 0.7}, "fails"),
        ({"untrained": 0.1, "at_least": 0.7}, "fails"),
    ],
)
def test_a_claim_holds_where_all_of_its_interval_is_above_the_bound_and_both_controls(
    numbers: dict[str, Any], verdict: str
) -> None:
    model = from_loaded(sharp_gpt2(), gpt2_tokenizer())
    run = PaperRun(gu_2024.TABLE, model, (), (), {})
    assert run.claimed("sink rate", 0.5, 200, interval=(0.4, 0.6), **numbers).verdict == verdict


@pytest.mark.parametrize(
    ("name", "corpora", "word"),
    [
        ("gu-2024", (), "corpus"),
        ("gu-2024", "short.txt", "short.txt"),
        ("gu-2023", (), "gu-2024"),
        ("gould-2023", (), "gould-2023"),
        ("gould-2023", "short.txt", "short.txt"),
    ],
)
def test_what_a_table_cannot_be_measured_on_is_refused(
    name: str, corpora: Any, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sentences(Path("short.txt"))
    model_class = GPT2Model if word == name else GPT2LMHeadModel
    model = from_loaded(sharp_gpt2(model_class=model_class, n_positions=64), gpt2_tokenizer())
    with pytest.raises(AttnvizError, match=word):
        attnviz.check(corpora, model, published=name)


@pytest.mark.thorough
def test_what_only_later_texts_have_is_measured_though_the_untrained_copy_reads_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    long = texts(tmp_path / "long.txt", 1, 70).read_text(encoding="utf-8").strip()
    path.write_text("the cat\n" * 500 + f"{long} .\n" * 2, encoding="utf-8")
    model = from_loaded(sharp_gpt2(n_positions=80), gpt2_tokenizer())
    assert rows(model, "gu-2024", path)["sink rate"].n == 2
    assert "heads over 0.5: previous token" in rows(model, "clark-2019", path)
