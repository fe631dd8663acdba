"""What a tokenizer returned: padding left out, packed documents apart, other masks refused."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnviz
from attnviz.errors import AttnvizError, TextError, UsageError
from attnviz.models.sources import find_checkpoint
from tests.conftest import needs_minilm
from tests.support.llamas import sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SUMS_32

TEXTS = ["the cat that i saw ran away", "a dog"]
LOWEST = torch.finfo(torch.float32).min


def with_padding(tokenizer: Any, side: str = "right") -> Any:
    tokenizer.padding_side, tokenizer.pad_token = side, tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


MODELS = {
    "bert": (sharp_bert, bert_tokenizer),
    "gpt2": (sharp_gpt2, gpt2_tokenizer),
    "llama": (lambda: sharp_llama().model, gpt2_tokenizer),
}


def own_attention(model: Any, inputs: Any, row: int, tokens: Any) -> torch.Tensor:
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = torch.stack(model(**inputs, output_attentions=True).attentions)[:, row]
    return attentions[:, :, tokens][..., tokens]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_padding_is_left_out_on_either_side(name: str, side: str):
    model, tokenizer = MODELS[name][0](), with_padding(MODELS[name][1](), side)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    mask = inputs["attention_mask"]
    inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    found = attnviz.analyze(inputs, model, tokenizer=tokenizer, syntax=False)
    assert [analysis.text for analysis in found] == TEXTS
    for row, analysis in enumerate(found):
        own = own_attention(model, inputs, row, mask[row].bool())
        assert torch.allclose(analysis.attention(), own, atol=SUMS_32)
        assert analysis.tokens == attnviz.analyze(TEXTS[row], model, tokenizer=tokenizer, syntax=False).tokens
    with pytest.raises(UsageError):
        attnviz.analyze({"input_ids": inputs["input_ids"]}, model, tokenizer=tokenizer)


@pytest.mark.parametrize("name", MODELS)
def test_packed_documents_keep_apart(name: str):
    model, tokenizer = MODELS[name][0](), MODELS[name][1]()
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    seen = torch.block_diag(*[torch.ones(len(each), len(each)) for each in ids]).bool()
    seen = seen if name == "bert" else seen.tril()
    inputs = {
        "input_ids": torch.tensor([[token for each in ids for token in each]]),
        "position_ids": torch.tensor([[at for each in ids for at in range(len(each))]]),
    }
    found = attnviz.analyze(inputs, model, tokenizer=tokenizer, syntax=False)
    assert [each.text for each in found] == TEXTS
    inputs["attention_mask"] = torch.zeros(seen.shape).masked_fill(~seen, LOWEST)[None, None]
    for analysis, tokens in zip(found, (slice(0, len(ids[0])), slice(len(ids[0]), None)), strict=True):
        assert torch.allclose(analysis.attention(), own_attention(model, inputs, 0, tokens), atol=SUMS_32)
    with pytest.raises(UsageError, match="position_ids"):
        attnviz.analyze(inputs, model, tokenizer=tokenizer)


def test_one_text_gives_one_analysis_and_a_list_of_texts_a_list():
    model, tokenizer = sharp_bert(), bert_tokenizer()
    pair = tokenizer("the cat ran", "a dog saw it", return_tensors="pt")
    analysis = attnviz.analyze(pair, model, tokenizer=tokenizer, syntax=False)
    assert (analysis.text, analysis.pair) == ("the cat ran", "a dog saw it")
    assert torch.allclose(analysis.attention(), own_attention(model, pair, 0, slice(None)), atol=SUMS_32)
    assert analysis.attention().shape == (3, 4, len(analysis.tokens), len(analysis.tokens))
    without = attnviz.analyze(tokenizer("the cat ran", add_special_tokens=False), model, tokenizer=tokenizer)
    assert without.tokens.labels == ("the", "cat", "ran")
    assert [each.text for each in attnviz.analyze(TEXTS, model, tokenizer=tokenizer)] == TEXTS
    rows = [tokenizer(text) for text in TEXTS]
    for given in (tokenizer(TEXTS), rows, np.array(TEXTS)):
        assert [each.text for each in attnviz.analyze(given, model, tokenizer=tokenizer)] == TEXTS
    (alone,) = attnviz.analyze(rows[:1], model, tokenizer=tokenizer)
    assert alone.text == TEXTS[0]


@pytest.mark.draws
@pytest.mark.thorough
@needs_minilm
def test_words_are_those_of_the_text():
    tokenizer = AutoTokenizer.from_pretrained(find_checkpoint("minilm").folder)
    read = attnviz.analyze(tokenizer("The cat's dog can't"), "minilm", syntax=False)
    assert read.text == "the cat's dog can't"
    assert read.tokens == attnviz.analyze("the cat's dog can't", "minilm", syntax=False).tokens


IDS = torch.tensor([[2, 5, 6, 7, 3]])


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("bert", {"input_ids": None}, "input_ids"),
        ("bert", {"input_ids": torch.rand(1, 5)}, "input_ids"),
        ("bert", {"input_ids": [[True, False]]}, "input_ids"),
        ("bert", {"input_ids": np.ma.array([[2, 5, 6, 7, 3]], mask=[[0, 0, 1, 0, 0]])}, "input_ids"),
        ("bert", {"input_ids": torch.zeros(0, 5).long()}, "input_ids"),
        ("gpt2", {"position_ids": torch.zeros(1, 5).bool()}, "position_ids"),
        ("bert", {"input_ids": [[2, 5, 999, 3]]}, "999"),
        ("bert", {"input_ids": [[2, 3]]}, "special"),
        ("bert", {"input_ids": torch.full((1, 50), 5)}, "40 positions"),
        ("bert", {"pixel_values": torch.ones(1)}, "pixel_values"),
        ("bert", {"attention_mask": torch.tensor([[1, 0, 1, 1, 1]])}, "token 1"),
        ("bert", {"attention_mask": torch.zeros(1, 5)[None].long()[0]}, "attention_mask"),
        ("bert", {"attention_mask": torch.tensor([[1, 1, 2, 2, 2]])}, "attention_mask"),
        ("bert", {"attention_mask": torch.ones(1, 4).long()}, r"\[4\]"),
        ("gpt2", {"position_ids": torch.arange(3, 8)[None]}, "3 at token 0"),
        ("gpt2", {"position_ids": torch.tensor([[0, 1, 3, 4, 5]])}, "3 at token 2"),
        ("gpt2", {"token_type_ids": torch.ones(1, 5).long()}, "token_type_ids"),
    ],
)  # fmt: skip
def test_what_no_document_would_have_is_refused_by_name(name: str, changes: dict[str, Any], word: str):
    model, tokenizer = (make() for make in MODELS[name])
    inputs = {key: value for key, value in ({"input_ids": IDS} | changes).items() if value is not None}
    with pytest.raises(AttnvizError, match=word) as error:
        attnviz.analyze(inputs, model, tokenizer=tokenizer, syntax=False)
    assert "\n" not in str(error.value)


def test_options_of_one_text_are_refused_with_several():
    tokenizer = bert_tokenizer()
    given = {"model": sharp_bert(), "tokenizer": tokenizer}
    for refused, error in (
        (lambda: attnviz.analyze(TEXTS, **given, pair="a dog"), UsageError),
        (lambda: attnviz.analyze(tokenizer(TEXTS[0]), **given, generate=3), UsageError),
        (lambda: attnviz.analyze(tokenizer(TEXTS[0])), UsageError),
        (lambda: attnviz.analyze({}.keys(), **given), UsageError),
        (lambda: attnviz.analyze(["a dog", " "], **given), TextError),
    ):
        with pytest.raises(error):
            refused()
    assert [each.tokens.ids for each in attnviz.analyze(IDS, **given)] == [tuple(IDS[0].tolist())]
