"""A decoder that continues the text: its greedy tokens, the attention of all of them, and who says so."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import TextError, UsageError
from attnviz.models.checkpoint import from_loaded
from tests.support.drawn import texts_of
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

TEXT, N = "the cat that", 5
SWITCHED_OFF: dict[str, Any] = {"syntax": False}


def gpt2() -> tuple[Any, Any]:
    model = sharp_gpt2(model_class=GPT2LMHeadModel)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return model, gpt2_tokenizer()


def llama(family: str = "llama") -> tuple[Any, Any]:
    model = sharp_llama(family)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return model, sentencepiece_tokenizer()


def continued(model: Any, tokenizer: Any, text: str = TEXT, generate: int = N, **options: Any) -> Analysis:
    return attnviz.analyze(text, model, tokenizer=tokenizer, generate=generate, **SWITCHED_OFF, **options)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return continued(*gpt2())


@pytest.mark.parametrize(
    "built", [gpt2(), llama(), llama("gemma2"), llama("mistral")], ids=["gpt2", "llama", "gemma2", "mistral"]
)
def test_the_tokens_are_those_that_transformers_generates(built: tuple[Any, Any]) -> None:
    model, tokenizer = built
    result = continued(model, tokenizer)
    given = torch.tensor([from_loaded(model, tokenizer).tokenize(TEXT).ids])
    options: dict[str, Any] = {"max_new_tokens": N, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(given, attention_mask=torch.ones_like(given), **options)
    assert list(result.tokens.ids) == expected[0].tolist()
    assert result.continuation is not None
    assert (result.continuation.first, result.continuation.count) == (given.shape[1], N)
    assert result.verification.heads_compared == len(result.heads)


def test_the_patterns_are_those_of_the_whole_text_in_one_pass(analysis: Analysis) -> None:
    model, tokenizer = gpt2()
    assert analysis.continuation is not None
    whole = attnviz.analyze(analysis.continuation.whole, model, tokenizer=tokenizer, **SWITCHED_OFF)
    assert whole.tokens == analysis.tokens
    assert torch.equal(whole.pattern("L1H2"), analysis.pattern("L1H2"))
    assert (whole.continuation, whole.generated) == (None, ())


def test_document_tables_captions_and_labels_tell_it(analysis: Analysis) -> None:
    content = analysis.document()
    assert analysis.continuation is not None
    assert content["text"] == TEXT
    assert TEXT + content["continuation"] == analysis.continuation.whole
    assert (content["generate"], content["generated"], content["hit_eos"]) == (N, N, False)
    assert [token["generated"] for token in content["tokens"]] == [False] * 3 + [True] * N
    plain = attnviz.analyze(TEXT, gpt2()[0], tokenizer=gpt2_tokenizer(), **SWITCHED_OFF).document()
    assert not {"continuation", "generate", "generated", "hit_eos"} & set(plain)
    assert "generated" in analysis.report(200, verbose=True)
    heatmap = analysis.figure("heads", select=["L0H1"])
    assert any("generated" in text for text in texts_of(heatmap))
    bold = [label for label in heatmap.axes[0].get_yticklabels() if label.get_fontweight() == "bold"]
    assert len(bold) == N
    assert '"--generate","5"' in analysis.page()


def test_the_end_token_ends_it_and_is_left_out() -> None:
    model, tokenizer = llama()
    start = len(from_loaded(model, tokenizer).tokenize(TEXT))
    written = continued(model, tokenizer).tokens.ids[start:]
    place = next(place for place in range(1, N) if written[place] not in written[:place])
    model.config.eos_token_id = [written[place], 1]
    result = continued(model, tokenizer)
    assert result.tokens.ids[start:] == written[:place]
    assert result.continuation is not None
    assert result.continuation.hit_eos
    assert result.document()["hit_eos"] is True
    model.config.eos_token_id = written[0]
    with pytest.raises(TextError, match="ends this text at once"):
        continued(model, tokenizer)


@pytest.mark.parametrize(
    ("built", "options", "word"),
    [
        *((gpt2(), {"generate": count}, "generate") for count in (0, -1, 1.5, True, "3")),
        ((sharp_bert(), bert_tokenizer()), {}, "takes a decoder"),
        ((sharp_gpt2(), gpt2_tokenizer()), {}, "takes a decoder"),
        (gpt2(), {"generate": 40}, "40 more were asked for"),
        (gpt2(), {"pair": "the dog"}, "--pair"),
    ],
)
def test_what_cannot_be_continued_is_refused(built: tuple[Any, Any], options: dict[str, Any], word: str) -> None:
    with pytest.raises((UsageError, TextError), match=word):
        continued(*built, **options)


def test_the_command_writes_it(tmp_path: Path) -> None:
    folder = save_checkpoint(*gpt2(), tmp_path / "model")
    options = ["-m", str(folder), "--figures", "none", "--no-syntax", "-o", str(tmp_path / "out"), "--generate"]
    done = CliRunner().invoke(app, ["heads", TEXT, *options, "4"])
    assert (done.exit_code, "continued the text" in done.stderr) == (0, True)
    assert json.loads((tmp_path / "out" / "heads.json").read_text())["generated"] == 4
    assert json.loads(json.dumps(continued(*gpt2(), generate=np.int64(2)).document()))["generate"] == 2
