"""BERT's relatives: verified as BERT is, from their own files, with their own tokenizers, by every command."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attnviz
from attnviz.commands.explain.position_share import input_parts
from attnviz.commands.explain.stages import verify_stages
from attnviz.models.checkpoint import Checkpoint, load_checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.sources import find_checkpoint
from attnviz.models.tokens import merge_subwords
from attnviz.trace.verify import verify_attention
from tests.conftest import SENTENCE, needs_parser
from tests.support.relatives import KINDS, checkpoint_of

of_each = pytest.mark.parametrize("kind", KINDS)
SHAPES = [{}, {"hidden_size": 24, "num_attention_heads": 1, "num_hidden_layers": 1}, {"num_attention_heads": 16}]
PARTED = [kind for kind in KINDS if not ARCHITECTURES[kind].segments]


def loaded(folder: Path) -> Checkpoint:
    return load_checkpoint(find_checkpoint(str(folder)), torch.device("cpu"), torch.float32)


def run(checkpoint: Checkpoint, text: str = SENTENCE, pair: str | None = None) -> Any:
    return verify_attention(checkpoint, checkpoint.tokenize(text, pair))


@of_each
@pytest.mark.parametrize("pair", [None, "a dog"])
def test_the_input_of_the_first_layer_follows_from_the_tables(kind, pair):
    checkpoint = checkpoint_of(kind, torch.float64)
    tokens = checkpoint.tokenize(f"{SENTENCE}{checkpoint.tokenizer.pad_token} the cat", pair)  # typed padding, too
    kept: list[Any] = []
    verify_stages(checkpoint, tokens, [0, 2], kept.append)
    assert kept[0].checks["input"].error < 1e-14
    assert kept[1].checks["output"].error < 1e-13
    with torch.inference_mode():
        parts = torch.stack(list(input_parts(checkpoint, tokens).values())).sum(0)
    assert float((parts - kept[0]["input"].tensor).abs().max()) < 1e-13


@pytest.mark.parametrize("width", [20, 32])
def test_embeddings_of_electra_are_projected_where_they_are_narrower(width):
    checkpoint = checkpoint_of("electra", embedding_size=width)
    verify_stages(checkpoint, checkpoint.tokenize(SENTENCE, "a dog"), [0], lambda _: None)
    formula = attnviz.explain(SENTENCE, checkpoint).document()["stages"][0]["formula"]
    assert formula == "x = norm(word + position + segment)" + " W + b" * (width == 20)


# --- pairs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PARTED)
def test_a_pair_is_joined_as_the_tokenizer_does_and_that_is_said(kind, tmp_path):
    checkpoint = checkpoint_of(kind)
    result = attnviz.analyze("the cat ran", checkpoint, pair="a dog", syntax=False)
    between = "</s></s>" if "<s>" in result.tokens.labels else "[SEP]"
    first, last = result.tokens.labels[0], result.tokens.labels[-1]
    assert result.tokens.ids == tuple(checkpoint.tokenizer("the cat ran", "a dog")["input_ids"])
    (note,) = result.document()["reading_notes"]
    assert f"{first} TEXT {between} PAIR {last}" in note
    assert note in " ".join(result.report().split())
    assert "token types" not in attnviz.analyze("the cat ran", checkpoint, syntax=False).report()
    assert attnviz.compare(result, result).document()["reading_notes"] == [note]


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("roberta", ("<s>", "the", "un", "~be", "~liev", "~a", "~bl", "~e", "cat", "~s", "ran", "away", ".",
                     "<mask>", "</s>")),
        ("xlm-roberta", ("<s>", "the", "un", "~believ", "~able", "cat", "~s", "ran", "away", ".", "<mask>", "</s>")),
    ],
)  # fmt: skip
def test_labels_and_words_are_those_of_other_tokenizers(kind, labels):
    tokens = checkpoint_of(kind).tokenize("the unbelievable cats ran away. <mask>")
    assert tokens.labels == labels
    assert tokens.word_labels == ("the", "unbelievable", "cats", "ran", "away", ".", "<mask>")
    assert [i for i, special in enumerate(tokens.special) if special] == [0, len(labels) - 1]
    units = merge_subwords(tokens, words=True)
    assert units.labels == ("<s>", *tokens.word_labels, "</s>")
    assert tokens.sinks == {0, len(labels) - 1}


def test_an_unknown_piece_is_shown_as_the_model_sees_it():
    tokens = checkpoint_of("xlm-roberta").tokenize("cat 中")
    assert tokens.labels == ("<s>", "cat", "␣", "~<unk>", "</s>")
    assert tokens.word_labels == ("cat", "中")


@needs_parser
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_a_parse_meets_the_words_of_the_tokenizer(kind):
    result = attnviz.analyze("The cats saw a dog.", checkpoint_of(kind), words=True)
    assert result.parse is not None
    at = {word.text: word.positions for word in result.parse.words}
    assert list(at) == ["The", "cats", "saw", "a", "dog", "."]
    labels = result.tokens.labels
    assert [labels[i] for i in at["cats"]] == ["cat", "~s"]
    assert [labels[i] for i in at["dog"]] == ["dog"]
    assert [labels[i] for i in at["."]] == ["."]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_profile_does_not_depend_on_the_side_of_the_tokenizers_padding(side, tmp_path):
    (tmp_path / "corpus.txt").write_text("The cat ran away\nthe dog that I saw ran\nhe saw one tree\n")
    checkpoint = checkpoint_of(KINDS[0])
    checkpoint.tokenizer.padding_side = side
    scores = [
        attnviz.profile_heads(checkpoint, [tmp_path / "corpus.txt"], syntax=False, batch_size=size).document()[
            "statistics"
        ]
        for size in (1, 8)
    ]
    for name in ("entropy", "distance", "sink"):
        torch.testing.assert_close(torch.tensor(scores[0][name]), torch.tensor(scores[1][name]), rtol=1e-5, atol=1e-5)
