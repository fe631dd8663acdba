"""What commands make of a text does not depend on the blocks in which its rows come, and holds no layer's patterns."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel
from transformers.models.gpt2 import modeling_gpt2

import attnviz
from attnviz.present.report import views_of
from attnviz.present.result import Result
from attnviz.present.view import ViewOptions
from tests.support.blocks import in_blocks
from tests.support.drawn import numbers_of as drawn
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.families import first_of
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import LONG_TEXT, bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SHARP


def many_heads() -> dict[str, Any]:
    """Of few dimensions, so that the patterns of a layer would be by far the largest tensor."""
    model = sharp_bert(max_position_embeddings=300, num_attention_heads=16, num_hidden_layers=1)
    return {"model": model, "tokenizer": bert_tokenizer()}


def gpt2(**changes: Any) -> dict[str, Any]:
    return {"model": sharp_gpt2(model_class=GPT2LMHeadModel, n_positions=300, **changes), "tokenizer": gpt2_tokenizer()}


TEXT = "the cat that i saw ran away"
MODELS: dict[str, Callable[[], tuple[dict[str, Any], str]]] = {
    "bert": lambda: ({"model": sharp_bert(max_position_embeddings=99), "tokenizer": bert_tokenizer()}, LONG_TEXT),
    "gpt2": lambda: (gpt2(), LONG_TEXT),
    "gemma2": lambda: ({"model": sharp_llama("gemma2"), "tokenizer": sentencepiece_tokenizer()}, TEXT),
    "t5": lambda: ({"model": sharp("t5", len(tokenizer := unigram_tokenizer())), "tokenizer": tokenizer}, SOURCE),
}


def target(model: dict[str, Any]) -> dict[str, Any]:
    return {"target": TARGET} if hasattr(model["model"], "decoder") else {}


def outputs(model: dict[str, Any], text: str) -> Result:
    return attnviz.head_outputs(text, **model, **target(model))


def rollout(model: dict[str, Any], text: str) -> Result:
    return attnviz.rollout(text, words=True, **model)


def compare(model: dict[str, Any], text: str) -> Result:
    """As many words, but not as many tokens, so that the blocks of the sides are others."""
    texts = text, text.replace("cat", "unbelievableness", 3)
    return attnviz.compare(
        *(attnviz.analyze(each, words=True, syntax=False, **model, **target(model)) for each in texts)
    )


def explain(model: dict[str, Any], text: str) -> Result:
    return attnviz.explain(text, **model)


def ablate(model: dict[str, Any], text: str) -> Result:
    more = target(model)
    return attnviz.ablate(text, **model, **more, method="uniform", select=["X" if more else "L0"])


COMMANDS = {"ablate": ablate, "outputs": outputs, "rollout": rollout, "compare": compare, "explain": explain}
PATTERNS_HELD = {"outputs": 2, "rollout": 3, "compare": 2}
"""The largest tensor of a command has fewer numbers than so many patterns of one head."""


def found_in(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document, but errors and ranks, which differ by rounding, as does the sign of equal numbers."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in entries:
        yield from found_in(each, f"{path}.{name}")
    if isinstance(value, float) and "error" not in path:
        yield path, abs(value) if path.endswith("largest.difference") else value


def everything(result: Result) -> tuple[dict[str, float], list[np.ndarray]]:
    """All numbers of a result: of its document, of its pictures, and its tensors."""
    arrays = [
        np.asarray(values)
        for view in views_of(result.command)
        if view.name != "page" and not view.drawing.missing(result)
        for plan in view.drawing.plans(result, ViewOptions())
        for values in drawn(plan)
    ]
    if isinstance(result, attnviz.HeadOutputs):
        for head in result.heads:
            of_head = (result.output, result.norms, result.value_norms, result.pattern)
            arrays += [method(head.id).numpy() for method in of_head]
    if isinstance(result, attnviz.Explanation):
        arrays += [stage.wide.numpy() for stage in result.stages.values()]
    return dict(found_in(result.document())), arrays


CASES = [
    (command, kind, torch.float64) for command in COMMANDS for kind in MODELS if (command, kind) != ("explain", "t5")
]
CASES += [(command, kind, torch.float32) for command in COMMANDS for kind in ("bert", "gpt2")]
EVERYBODY = [(command, "gpt2", torch.float64) for command in COMMANDS]


@pytest.mark.parametrize(("command", "kind", "dtype"), first_of(CASES, *EVERYBODY))
def test_no_number_of_a_command_depends_on_the_blocks(
    command: str, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = MODELS[kind]()
    model["model"].to(dtype)
    whole, arrays = everything(COMMANDS[command](model, text))
    assert len(whole) > 20
    assert arrays or command == "ablate"  # whose pictures of one text are bars and a curve
    # gemma2's own softmax is float32 in float64, too: vector instructions round it by how many keys a block has
    rounding = SHARP[torch.float32 if kind == "gemma2" else dtype]
    rounding *= 50 if command == "ablate" else 1  # losses of a model as sharp as these say more of it
    in_blocks(monkeypatch, 3 if kind == "t5" else 7)
    again, others = everything(COMMANDS[command](model, text))
    assert again == pytest.approx(whole, rel=rounding, abs=rounding)
    for one, other in zip(arrays, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding * max(1.0, np.abs(one).max()))


def test_explain_of_more_queries_than_a_chunk_of_its_softmax_is_that_of_the_model() -> None:
    assert len(explain(gpt2(n_layer=1), f"{TEXT} " * 30).tokens) > 200


def test_ablation_attends_to_no_more_rows_at_once_than_a_block_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the unchanged pass, in resumed ones, in gradients and in what verifies them."""
    eager, rows = modeling_gpt2.eager_attention_forward, list[int]()

    def counted(module: Any, query: torch.Tensor, *given: Any, **named: Any) -> Any:
        rows.append(query.shape[-2])
        return eager(module, query, *given, **named)

    monkeypatch.setattr(modeling_gpt2, "eager_attention_forward", counted)
    in_blocks(monkeypatch, 7)
    model = gpt2()
    model["model"].set_attn_implementation("eager")
    ablate(model, LONG_TEXT)
    assert max(rows) == 7
    assert len(rows) > 20


class Largest(torch.overrides.TorchFunctionMode):
    """The most numbers of any tensor, or of any of a number format, that was made while it was entered."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.found, self.dtype = 0, dtype

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple) else (result,):
            if isinstance(each, torch.Tensor) and self.dtype in (None, each.dtype) and each.untyped_storage().nbytes():
                self.found = max(self.found, each.untyped_storage().nbytes() // each.element_size())
        return result


@pytest.mark.parametrize("command", first_of(PATTERNS_HELD, "outputs", "rollout"))
def test_no_command_holds_the_patterns_of_a_layer(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_blocks(monkeypatch, 4)
    with Largest() as largest:
        result = COMMANDS[command](many_heads(), "the cat saw a dog " * 40)
        list(result.document())
        for view in views_of(command):
            if view.name != "page" and not view.drawing.missing(result):
                list(view.drawing.plans(result, ViewOptions()))
    n = len(getattr(result, "first", result).tokens)
    assert n * 4 * 16 <= largest.found < PATTERNS_HELD[command] * n**2


def test_a_comparison_has_the_rows_of_one_head_at_a_time_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """All heads of a block in float64 would take twice the memory of the block."""
    rows, model = 8, many_heads()
    in_blocks(monkeypatch, rows)
    text = "the cat saw a dog " * 20
    sides = [attnviz.analyze(each, syntax=False, **model) for each in (text, text.replace("cat", "house"))]
    with Largest(torch.float64) as widest, Largest() as block:
        attnviz.compare(*sides)
    n = len(sides[0].tokens)
    assert n > 2 * 16  # rows of a head are more numbers than two results of each row of each head
    assert block.found >= 16 * rows * n
    assert widest.found == rows * n
