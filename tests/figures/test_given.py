"""attnviz.draw: pictures of attention weights from any library, which nobody takes for verified ones.

The pattern of a generation equals that of one eager pass over prompt and new tokens.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

import attnviz
from attnviz.commands.heads.page_view import page_data
from attnviz.errors import UsageError
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of, texts_of
from tests.support.models import gpt2_tokenizer, sharp_gpt2
from tests.support.tolerances import SUMS_32

TOKENS = "[CLS] the cat that i saw ran away [SEP]".split()
WEIGHTS = (3 * torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))).softmax(-1)


def cells_of(drawing: Any, head: str) -> np.ndarray:
    """The matrix that a heatmap of this head shows."""
    figure = drawing.figure("heads", select=head)
    return next(np.asarray(image.get_array()) for ax in figure.axes for image in ax.get_images())


@pytest.mark.draws
@pytest.mark.parametrize(
    "given",
    [WEIGHTS, WEIGHTS.numpy(), WEIGHTS.tolist(), tuple(layer[None] for layer in WEIGHTS), WEIGHTS.half(),
     (*WEIGHTS[:, None].numpy(),)],
    ids=["tensor", "array", "lists", "attentions", "half", "arrays"],
)  # fmt: skip
def test_the_weights_are_those_that_were_given_and_not_verified(given: Any):
    drawing = attnviz.draw(given, TOKENS)
    torch.testing.assert_close(torch.as_tensor(drawing.pattern("L1H2")), WEIGHTS[1, 2], atol=1e-3, rtol=0)
    assert drawing.verification.level == 0


class Cache:
    """As TransformerLens' ActivationCache: no mapping, but it has one."""

    def __init__(self, cache_dict: dict[str, torch.Tensor]) -> None:
        self.cache_dict = cache_dict


PATTERNS = {f"blocks.{layer}.attn.hook_pattern": WEIGHTS[layer, None] for layer in (0, 1)}
OTHERS = {"hook_embed": torch.ones(1, 9, 4), "blocks.0.attn.hook_attn_scores": -WEIGHTS[0, None]}


@pytest.mark.parametrize(
    "given",
    [
        PATTERNS | OTHERS,
        Cache(OTHERS | PATTERNS),
        Cache({name: values[0] for name, values in (PATTERNS | OTHERS).items()}),  # after remove_batch_dim
        {f"layer_{layer}": WEIGHTS[layer].tolist() for layer in (1, 0)},
        json.loads(json.dumps({layer: WEIGHTS[layer].tolist() for layer in (0, 1)})),
        {0: WEIGHTS[0], 1: WEIGHTS[1].numpy()},
        [{"layer": layer, "attention": WEIGHTS[layer].tolist()} for layer in (1, 0)],
        [{"layerIndex": layer, "heads": WEIGHTS[layer].tolist(), "n": 9} for layer in (0, 1)],
    ],
    ids=["hooks", "cache", "one text", "names", "JSON", "numbers", "objects", "heads"],
)
def test_weights_by_layer_are_those_that_were_given(given: Any):
    torch.testing.assert_close(drawn(attnviz.draw(given, TOKENS)), WEIGHTS, atol=SUMS_32, rtol=SUMS_32)


def test_of_a_stack_of_several_texts_one_is_drawn():
    stacked = torch.stack([WEIGHTS.flip(-1), WEIGHTS], dim=1)  # [n_layers, batch, n_heads, n, n]
    torch.testing.assert_close(drawn(attnviz.draw(stacked, TOKENS, batch=1)), WEIGHTS)


def test_of_given_weights_nothing_but_the_pattern_can_be_read():
    drawing = attnviz.draw(WEIGHTS, TOKENS)
    with pytest.raises(UsageError, match="pattern"):
        drawing.activation("z", 0)


@pytest.mark.draws
def test_given_weights_are_compared_with_others(tmp_path: Path):
    before = attnviz.draw(WEIGHTS, TOKENS, name="before")
    changed = WEIGHTS.clone()
    changed[1, 2] = torch.eye(9)
    comparison = attnviz.compare(before, attnviz.draw(changed, TOKENS, name="after"))
    assert [str(head.id) for head in comparison.heads if not head.rounding] == ["L1H2"]
    largest = (torch.eye(9) - WEIGHTS[1, 2]).abs().max()
    assert abs(comparison.heads[0].largest.difference) == pytest.approx(float(largest), abs=SUMS_32)
    comparison.save(tmp_path, figures=["all"])
    document = json.loads((tmp_path / "compare.json").read_text())
    assert [model["name"] for model in document["models"]] == ["before", "after"]
    assert [side["level"] for side in document["verification"]] == [0, 0]


def test_given_weights_are_compared_with_those_of_their_shape_and_tokens_alone():
    drawing = attnviz.draw(WEIGHTS, TOKENS)
    others = [attnviz.draw(WEIGHTS[:1], TOKENS), attnviz.draw(WEIGHTS, [*TOKENS[:-1], "home"])]
    analysis = attnviz.analyze("one two three", model=sharp_gpt2(), tokenizer=gpt2_tokenizer())
    for other in (*others, analysis):
        with pytest.raises(UsageError):
            attnviz.compare(drawing, other)
        with pytest.raises(UsageError):
            attnviz.compare(other, drawing)


def test_each_head_of_given_weights_has_keys_of_its_own():
    document = attnviz.draw(WEIGHTS, TOKENS).document(by="kv-head")
    assert [entry["heads"] for entry in document["kv_heads"]] == [
        f"L{layer}H{head}" for layer in (0, 1) for head in range(3)
    ]
    assert not any("kv_head" in head for head in document["heads"])


def test_of_a_cache_of_several_texts_one_is_drawn():
    cache = {name: torch.cat([values.roll(1, 1), values]) for name, values in PATTERNS.items()}
    torch.testing.assert_close(drawn(attnviz.draw(cache, TOKENS, batch=1)), WEIGHTS)


def test_weights_are_saved_and_drawn_as_an_analysis_is(tmp_path: Path):
    """With what is known of them alone."""
    drawing = attnviz.draw(WEIGHTS, TOKENS, name="mine")
    np.testing.assert_allclose(cells_of(drawing, "L1H2"), WEIGHTS[1, 2], atol=1e-3)
    document = drawing.save(tmp_path / "out", figures=["page"])
    assert {"heads.csv", "heads.html", "heads.json"} <= set(document["files"])
    assert document["verification"]["passed"] is False
    assert document["model"] == {"name": "mine", "n_layers": 2, "n_heads": 3}


@pytest.mark.draws
@pytest.mark.parametrize("shape", [(9, 9), pytest.param((2, 3, 9, 9), marks=pytest.mark.thorough)])
def test_every_picture_says_that_it_is_not_verified(shape: tuple[int, ...]):
    drawing = attnviz.draw(torch.full(shape, 1 / 9), TOKENS, name="mine")
    for view in ("overview", "heads", "lines", "map", "mean", "text"):
        assert "not verified" in " ".join(" ".join(texts_of(drawing.figure(view))).split())


def test_the_first_token_of_causal_weights_alone_is_a_sink():
    causal = torch.ones(1, 1, 5, 5).tril() / torch.arange(1, 6)[:, None]
    first = causal.clone()
    first[...] = torch.eye(5)[0]
    drawing = attnviz.draw(torch.cat([causal, first], 1), list("abcde"))
    assert [head.label for head in drawing.heads] == ["broad", "sink"]
    assert not any(attnviz.draw(WEIGHTS, list("abcdefghi")).tokens.sink)  # these are not causal


EYE = torch.eye(2)


@pytest.mark.parametrize(
    ("weights", "tokens"),
    [
        (torch.ones(2, 3), ["a", "b"]),
        (torch.tensor([[1.0, 0.0], [1.0, 1.0]]), ["a", "b"]),  # a row sums to 2
        ([[1.0, 0.0], [0.5, float("nan")]], ["a", "b"]),
        (EYE - 0.25, ["a", "b"]),
        ("text", ["a"]),
        (np.array([["a"]]), ["a"]),
        (torch.eye(2, dtype=torch.complex64), ["a", "b"]),
        (np.ma.array(np.eye(2), mask=[[0, 1], [0, 0]]), ["a", "b"]),
        (torch.ones(1, 0, 2, 2), ["a", "b"]),
        ([[1.0], [1.0, 2.0]], ["a"]),
        (EYE, ["a"]),
        (EYE, "ab"),
        ((), ["a"]),
        ((None, None), ["a"]),
        ({"logits": 1, "decoder_attentions": 2}, ["a"]),
        ({"tokens": ["a", "b"], "layers": [{"layer": 0, "attention": [[[1.0, 0.0], [0.5, 0.5]]]}]}, ["a", "b"]),
        ({"blocks.0.attn.hook_attn_scores": EYE[None]}, ["a", "b"]),
        ({"0": EYE[None], "layer_0": EYE[None]}, ["a", "b"]),
        ({"layer_0": None}, ["a", "b"]),
        (
            [{"layer": 0, "head": 0, "attention": EYE[None]}, {"layer": 0, "head": 1, "attention": EYE[None]}],
            ["a", "b"],
        ),
        ([{"layer": 0, "attention": EYE[None]}, {"attention": EYE[None]}], ["a", "b"]),
        ([{"layer": 0, "attention": EYE}], ["a", "b"]),  # a mean of heads
        ([{"layer": 0, "heads": [{"head": 0, "attention": EYE}]}], ["a", "b"]),
        (EYE.expand(3, 2, 1, 2, 2), ["a", "b"]),
        (tuple(EYE.expand(3, 2, 1, 2, 2)), ["a", "b"]),
        ((torch.ones(1, 1, 2, 2), torch.ones(1, 3, 2, 2)), ["a", "b"]),
        (((EYE[None, None],), (torch.ones(1, 1, 2, 3),)), ["a", "b"]),
    ],
)
def test_what_are_no_weights_is_refused(weights: Any, tokens: Any):
    with pytest.raises(UsageError) as error:
        attnviz.draw(weights, tokens)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "values"),
    [("layers", ([0], [3, 1])), ("batch", ([0, 0], 5)), ("mask", ([1, 1], [0] * 9)), ("columns", (["a"],))],
)
def test_wrong_options_are_refused(option: str, values: Any):
    for value in values:
        with pytest.raises(UsageError, match=option):
            attnviz.draw(tuple(WEIGHTS[:, None]), TOKENS, **{option.replace("columns", "keys"): value})


def drawn(drawing: attnviz.RawAttention) -> torch.Tensor:
    return torch.stack(list(drawing.verified.patterns.values()))


def generating(kind: str = "gpt2") -> Any:
    torch.manual_seed(1)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    if kind == "windows":
        config = MistralConfig(vocab_size=400, hidden_size=32, sliding_window=4, initializer_range=0.5, **sizes)
        model = MistralForCausalLM(config).eval()
    else:
        model = sharp_gpt2(1, GPT2LMHeadModel)
    model.set_attn_implementation("eager")
    return model


def generated(model: Any, inputs: Any, **options: Any) -> Any:
    known = {"output_attentions": True, "return_dict_in_generate": True, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(**inputs, **{"max_new_tokens": 6, **known, **options})


def one_pass(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The model's own patterns of all tokens but the last, [n_layers, n_heads, n, n]."""
    with torch.no_grad():
        return torch.stack(model(ids[None, :-1], output_attentions=True).attentions)[:, 0]


STATIC = {"cache_implementation": "static"}


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, STATIC, {**STATIC, "max_new_tokens": 1}], ids=str)
@pytest.mark.parametrize("kind", ["gpt2", "windows"])
def test_the_steps_of_a_generation_are_one_pass(kind: str, options: dict[str, Any]):
    model, tokenizer = generating(kind), gpt2_tokenizer()
    output = generated(model, tokenizer("the cat that i saw", return_tensors="pt"), do_sample=False, **options)
    ids = output.sequences[0]
    for tokens in (list(map(str, ids)), list(map(str, ids[:-1]))):
        drawing = attnviz.draw(output.attentions, tokens)
        torch.testing.assert_close(drawn(drawing), one_pass(model, ids), atol=SUMS_32, rtol=SUMS_32)


def test_padding_of_a_prompt_is_left_out():
    model, tokenizer = generating(), gpt2_tokenizer()
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    inputs = tokenizer(["the cat that i saw", "a dog"], padding=True, return_tensors="pt")
    output = generated(model, inputs, do_sample=False)
    ids, mask = output.sequences[1], inputs["attention_mask"]
    drawing = attnviz.draw(output.attentions, list(map(str, ids)), batch=1, mask=mask)
    n_padding = int((mask[1] == 0).sum())
    assert n_padding > 0
    torch.testing.assert_close(drawn(drawing), one_pass(model, ids[n_padding:]), atol=SUMS_32, rtol=SUMS_32)
    passed = model(**inputs, output_attentions=True).attentions
    prompt = attnviz.draw(passed, list(map(str, inputs["input_ids"][1])), batch=1, mask=mask)
    assert drawn(prompt).shape[-1] == len(ids) - 6 - n_padding


def test_cross_attention_has_tokens_of_its_columns():
    torch.manual_seed(0)
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(vocab_size=60, d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, init_std=0.5, **sizes)
    model = BartForConditionalGeneration(config).eval()
    model.set_attn_implementation("eager")
    source = torch.tensor([[0, 7, 8, 9, 2, 1]])
    mask = source != 1
    output = generated(model, {"input_ids": source, "attention_mask": mask}, do_sample=False)
    target = output.sequences[0]
    with torch.no_grad():
        whole = model(source, attention_mask=mask, decoder_input_ids=target[None, :-1], output_attentions=True)
    rows, columns = list(map(str, target)), list(map(str, source[0]))
    drawing = attnviz.draw(output.cross_attentions, rows, keys=columns, mask=mask)
    expected = torch.stack(whole.cross_attentions)[:, 0]
    torch.testing.assert_close(drawn(drawing), expected[..., :-1], atol=SUMS_32, rtol=SUMS_32)
    own = attnviz.draw(output.decoder_attentions, rows)
    torch.testing.assert_close(drawn(own), torch.stack(whole.decoder_attentions)[:, 0], atol=SUMS_32, rtol=SUMS_32)
    np.testing.assert_allclose(cells_of(drawing, "X1H0"), expected[1, 0, :, :-1].detach(), atol=1e-3)
    assert drawing.attention().shape == (2, 2, 6, 5)
    assert '"rows":1,"columns":0' in drawing.page().replace(" ", "")
    with pytest.raises(UsageError, match="keys="):
        attnviz.draw(torch.stack(whole.cross_attentions)[:, 0, ..., :5], rows[:-1])


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ((None, WEIGHTS[:1], None, WEIGHTS[1:]), None),
        (tuple(WEIGHTS[:, None]), [1, 3]),
        ([{"layer": 3, "attn": WEIGHTS[1]}, {"layer": 2, "attn": None}, {"layer": 1, "attn": WEIGHTS[0]}], None),
    ],
    ids=["None", "numbers", "objects"],
)
def test_layers_without_attention_keep_their_numbers(given: Any, layers: Any):
    drawing = attnviz.draw(given, TOKENS, layers=layers)
    ids = [str(head.id) for head in drawing.heads]
    assert ids == ["L1H0", "L1H1", "L1H2", "L3H0", "L3H1", "L3H2"]
    np.testing.assert_allclose(drawing.pattern("L3H2"), WEIGHTS[1, 2], atol=1e-3)
    (plan,) = drawing_of("heads", "map").plans(drawing, ViewOptions())
    assert [(list(map(str, of.layers)), of.values.shape) for of in plan.maps] == [(["1", "3"], (2, 3))]
    with pytest.raises(UsageError):
        drawing.figure("heads", select="L0H0")
    page = page_data(drawing, ViewOptions())
    assert page["command_line"]["program"] == []  # nothing would draw this again
    assert [page["rows"][head["row"]] for head in page["heads"]] == ["L1"] * 3 + ["L3"] * 3


def test_special_tokens_are_known_by_their_form():
    tokens = ["[CLS]", "<s>", "<|endoftext|>", "[UNK]", "<unk>", "[1]"]
    assert attnviz.draw(torch.eye(6), tokens).tokens.special == (True,) * 3 + (False,) * 3
