"""Tables of papers on what heads copy: models with such circuits by design, and without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import attnviz
from attnviz.commands.check.papers import wu_2024
from attnviz.errors import AttnvizError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.models.sources import find_checkpoint
from attnviz.trace.generation import drafted_greedily
from tests.commands.test_published_tables import rows
from tests.support.circuits import SHARP, Head, before, circuit_gpt2
from tests.support.models import bert_tokenizer, sharp_bert


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """That of tiny-gpt2: 4,096 pieces of English words."""
    return AutoTokenizer.from_pretrained(find_checkpoint("tiny-gpt2").folder)


@pytest.fixture(scope="module")
def novel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of other words than the needles'."""
    path = tmp_path_factory.mktemp("texts") / "novel.txt"
    words = "her letter was never sent because they had gone home again before dinner could be served".split()
    path.write_text("\n".join(" ".join(words[at % 7 :: 1 + at % 3]) for at in range(400)), encoding="utf-8")
    return path


# --- retrieval heads


@pytest.fixture(scope="module")
def copier(tokenizer: Any) -> Checkpoint:
    """L1H1 looks for the token after the last two tokens' earlier copies, and writes it; L1H0 looks there alone."""
    match = [("token", "last", SHARP), ("last", "second last", SHARP)]
    layers = [[before(1, "last"), before(2, "second last")], [Head(), Head(match, write=[("token", "out", 1.0)])]]
    return from_loaded(circuit_gpt2(["last", "second last"], layers, len(tokenizer), 300), tokenizer)


def test_the_head_that_copies_the_needle_is_found_and_no_other(copier: Checkpoint, novel: Path) -> None:
    found = attnviz.check([novel], copier, published="wu-2024")
    share, above, *heads = found.claims
    assert (share.n, above.n) == (60, 4)
    assert 0.5 < float(share.measured or 0) <= 1
    assert (above.measured, above.untrained) == (0.25, 0)
    assert [(each.claim.head, each.verdict) for each in heads] == [("L1H1", "holds")]
    assert heads[0].n == round(60 * float(share.measured or 0))
    assert heads[0].measured == pytest.approx(1, abs=0.2)
    assert found.exit_code == 0


def test_scores_are_those_of_a_plain_loop(copier: Checkpoint, tokenizer: Any) -> None:
    model: Any = copier.whole
    model.set_attn_implementation("eager")
    asked = wu_2024.prompts(copier, tokenizer("a long walk home " * 400)["input_ids"])
    for prompt in (asked[0], asked[25], asked[-1]):
        ids, score = list(prompt.ids), 0.0
        answer = range(prompt.start, prompt.start + len(prompt.answer))
        assert tuple(ids[position] for position in answer) == prompt.answer
        for _ in prompt.answer:
            with torch.no_grad():
                out = model(torch.tensor([ids]), output_attentions=True)
            largest = int(out.attentions[1][0, 1, -1].argmax())
            ids.append(int(out.logits[0, -1].argmax()))
            score += (largest in answer and ids[largest] == ids[-1]) / len(prompt.answer)
        assert drafted_greedily(copier, prompt.ids, prompt.answer) == ids[len(prompt.ids) :]
        measured = wu_2024.Retrieval(copier, [prompt], 0)
        measured.measure(0, prompt)
        assert float(measured.scores[0, 1, 1]) == pytest.approx(score)
        assert score > 0.5
    assert {round((prompt.start - 5) / 200, 1) for prompt in asked} >= {0.1, 0.3, 0.5}


def test_a_model_that_does_not_answer_has_no_retrieval_heads(novel: Path) -> None:
    tiny, _ = open_checkpoint("tiny-gpt2", device="cpu")
    found = rows(tiny, "wu-2024", novel)
    assert found["needles that the model finds"].measured == 0
    assert found["heads above 0.1"].measured == 0
    assert found["retrieval"].verdict == "cannot be decided"


WRONG = [
    ("wu-2024", "bert", "a decoder"),
    ("wu-2024", "short", "256 tokens"),
]


@pytest.mark.parametrize(("name", "what", "word"), WRONG)
def test_what_cannot_be_measured_is_told(
    name: str, what: str, word: str, copier: Checkpoint, tmp_path: Path, novel: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("a short text\n", encoding="utf-8")
    model = from_loaded(sharp_bert(), bert_tokenizer()) if what == "bert" else copier
    with pytest.raises(AttnvizError, match=word):
        rows(model, name, short if what == "short" else novel)
