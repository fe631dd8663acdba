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
from attnviz.analysis.result import Analysis
from attnviz.cli.program import app
from attnviz.errors import TextError, UsageError
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import from_loaded
from tests.support.families import first_of
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


@pytest.mark.parametrize("family", first_of(["gpt2", "gemma2", "mistral"], "gpt2", "gemma2"))
def test_the_tokens_are_those_that_transformers_generates(family: str) -> None:
    model, tokenizer = gpt2() if family == "gpt2" else llama(family)
    result = continued(model, tokenizer)
    given = torch.tensor([tokenize(from_loaded(model, tokenizer), TEXT).ids])
    options: dict[str, Any] = {"max_new_tokens": N, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(given, attention_mask=torch.ones_like(given), **options)
    assert list(result.tokens.ids) == expected[0].tolist()
    assert (result.continuation.first, result.continuation.count) == (given.shape[1], N)
    assert result.verification.heads_compared == len(result.heads)


def test_the_patterns_are_those_of_the_whole_text_in_one_pass(analysis: Analysis) -> None:
    model, tokenizer = gpt2()
    whole = attnviz.analyze(analysis.continuation.whole, model, tokenizer=tokenizer, **SWITCHED_OFF)
    assert whole.tokens == analysis.tokens
    assert torch.equal(whole.pattern("L1H2"), analysis.pattern("L1H2"))
    assert (whole.continuation, whole.parts[0].drawn(False).generated) == (None, ())


def test_the_document_tells_it(analysis: Analysis) -> None:
    content = analysis.document()
    assert content["text"] == TEXT
    assert TEXT + content["continuation"] == analysis.continuation.whole
    assert (content["generate"], content["generated"], content["hit_eos"]) == (N, N, False)
    assert [token["generated"] for token in content["tokens"]] == [False] * 3 + [True] * N
    plain = attnviz.analyze(TEXT, gpt2()[0], tokenizer=gpt2_tokenizer(), **SWITCHED_OFF).document()
    assert not {"continuation", "generate", "generated", "hit_eos"} & set(plain)
    labels = analysis.figure("heads", select=["L0H1"]).axes[0].get_yticklabels()
    assert sum(label.get_fontweight() == "bold" for label in labels) == N


def test_the_end_token_ends_it_and_is_left_out() -> None:
    model, tokenizer = llama()
    start = len(tokenize(from_loaded(model, tokenizer), TEXT))
    written = continued(model, tokenizer).tokens.ids[start:]
    place = next(place for place in range(1, N) if written[place] not in written[:place])
    model.config.eos_token_id = [written[place], 1]
    result = continued(model, tokenizer)
    assert result.tokens.ids[start:] == written[:place]
    assert result.continuation.hit_eos
    assert result.document()["hit_eos"] is True
    model.config.eos_token_id = written[0]
    with pytest.raises(TextError, match="ends"):
        continued(model, tokenizer)


@pytest.mark.parametrize(
    ("built", "options", "word"),
    [
        *((gpt2(), {"generate": count}, "generate") for count in (0, -1, 1.5, True, "3")),
        ((sharp_bert(), bert_tokenizer()), {}, "decoder"),
        ((sharp_gpt2(), gpt2_tokenizer()), {}, "decoder"),
        (gpt2(), {"generate": 40}, "40"),
        (gpt2(), {"pair": "the dog"}, "--pair"),
    ],
)
def test_what_cannot_be_continued_is_refused(built: tuple[Any, Any], options: dict[str, Any], word: str) -> None:
    with pytest.raises((UsageError, TextError), match=word):
        continued(*built, **options)


def test_the_command_writes_it(tmp_path: Path) -> None:
    folder = save_checkpoint(*gpt2(), tmp_path / "model")
    done = CliRunner().invoke(app, ["heads", TEXT, "-m", str(folder), "--figures", "none", "--json", "--generate", "4"])
    assert (done.exit_code, json.loads(done.stdout)["generated"]) == (0, 4)
    assert json.loads(json.dumps(continued(*gpt2(), generate=np.int64(2)).document()))["generate"] == 2
