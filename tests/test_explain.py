"""An explained layer: what is followed, its numbers, its tables and documents."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertModel

import attnviz
from attnviz.commands.explain.document import EXPLAIN, explain_csv
from attnviz.commands.explain.views import plan_positions
from attnviz.commands.explain.saving import Explanation, explain
from attnviz.commands.explain.numbers import shown_numbers, summary
from attnviz.commands.explain.steps import stage_words
from attnviz.errors import OutputError, TextError, UsageError, VerificationError
from attnviz.figures.look import Look
from attnviz.model.head_ids import HeadId
from tests.conftest import SENTENCE, needs_minilm
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2


def of_bert(text: str = SENTENCE, **options: Any) -> Explanation:
    return explain(text, sharp_bert(), tokenizer=bert_tokenizer(), **options)


def of_gpt2(text: str = SENTENCE, **options: Any) -> Explanation:
    return explain(text, sharp_gpt2(), tokenizer=gpt2_tokenizer(), **options)


# --- what is followed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "layer", "head"),
    [
        ({}, 0, "L0H0"),
        ({"layer": 2}, 2, "L2H0"),
        ({"head": "3"}, 0, "L0H3"),
        ({"head": "L1H2"}, 1, "L1H2"),
        ({"head": "1.2", "layer": 1}, 1, "L1H2"),
    ],
)
def test_which_layer_and_head(options: dict[str, Any], layer: int, head: str) -> None:
    found = of_bert(**options)
    assert (found.layer, str(found.head)) == (layer, head)
    assert found.stages.layer == layer
    assert (found.positions is None) == (layer > 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "no layer 3: expected one from 0 to 2"),
        ({"layer": -1}, "no layer -1"),
        ({"head": "4"}, "has no head 4: expected one from 0 to 3"),
        ({"head": "L9H0"}, "no layer 9"),
        ({"head": "x"}, "expected a head such as L2H8"),
        ({"head": "L1H0", "layer": 0}, "--head L1H0 is not in the layer that --layer names, 0"),
        ({"token": "zebra"}, "no token “zebra”"),
        ({"token": "#99"}, "no token"),
    ],
)
def test_what_cannot_be_followed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        of_bert(**options)


def test_which_token() -> None:
    assert of_bert().token == 7  # the last one before [SEP]
    assert of_gpt2().token == len(of_gpt2().tokens) - 1
    assert of_bert(token="cat").token == 2
    assert of_bert(token="#0").token == 0


def test_a_text_of_special_tokens_alone_follows_the_last() -> None:
    found = of_gpt2("<|endoftext|>")
    assert found.token == len(found.tokens) - 1


def test_tensors_by_name() -> None:
    found = of_bert(layer=1)
    assert found.tensor("pattern").shape == (4, 9, 9)
    with pytest.raises(UsageError, match="layer 1 has no step 'logits': expected one of input, query"):
        found.tensor("logits")


def test_every_layer_is_verified_on_request() -> None:
    assert of_gpt2().layers is None
    found = of_gpt2(layer=1, every_layer=True)
    assert found.layers is not None
    assert [(end.layer, end.compared) for end in found.layers] == [(0, 14), (1, 13), (2, 14)]
    assert max(end.worst_error for end in found.layers) < 1e-5
    assert found.stages["output"].check is not None
    assert found.layers[1].output_error == found.stages["output"].check.error


def test_a_broken_layer_fails_only_where_it_is_looked_at() -> None:
    model = sharp_bert()
    model.encoder.layer[2].output.dense.register_forward_hook(lambda *given: given[2] + 1)
    with pytest.raises(VerificationError, match="feed forward output of layer 2"):
        explain(SENTENCE, model, tokenizer=bert_tokenizer(), every_layer=True)
    assert explain(SENTENCE, model, tokenizer=bert_tokenizer()).layer == 0


# --- numbers and words --------------------------------------------------------------------------------------------


def test_numbers_of_the_followed_token_are_those_of_the_tensors() -> None:
    found = of_bert(head="2", token="cat")
    row = found.tensor("pattern")[2, 2]
    best = int(row.argmax())
    assert f"‘cat’ in L0H2 attends to ‘{found.tokens.labels[best]}’ {float(row[best]):.2f}" in shown_numbers(
        found, "pattern"
    )
    assert "sum 1.0000" in shown_numbers(found, "pattern")
    length = float(found.tensor("attention_output")[2].norm())
    assert f"‘cat’: length {length:.3g}; [" in shown_numbers(found, "attention_output")
    assert "may attend to 9 of 9 tokens" in shown_numbers(found, "mask")
    positive = int((found.tensor("expanded")[2] > 0).sum())
    assert f"{positive} of 48 inputs are positive" in shown_numbers(found, "activated")


def test_numbers_of_a_causal_head_leave_out_what_is_masked() -> None:
    found = of_gpt2("the cat ran", token="#0")
    assert shown_numbers(found, "pattern").count("‘") == 2  # the token, and itself as the only key
    assert "may attend to 1 of" in shown_numbers(found, "mask")


def test_residuals_and_norms_show_what_they_do() -> None:
    found = of_gpt2(layer=2)
    for name in ("attention_residual", "output"):
        assert "at a cosine of" in shown_numbers(found, name)
    for name in ("attention_norm", "feed_forward_norm", "final_norm"):
        assert "are taken out" in shown_numbers(found, name)
    post = of_bert(layer=2)
    for name in ("attention_norm", "output"):
        assert "are taken out" in shown_numbers(post, name)


def test_a_summary_is_of_all_numbers() -> None:
    found = of_gpt2()
    brief, tensor = summary(found.stages["query"]), found.tensor("query")
    assert (brief.least, brief.largest) == (float(tensor.min()), float(tensor.max()))
    assert brief.norm == pytest.approx(float(tensor.square().sum(-1).sqrt().mean()))
    n = len(found.tokens)
    mask = summary(found.stages["mask"])
    assert (mask.least, mask.largest, mask.norm) == (0, 1, None)
    assert mask.mean == pytest.approx((n + 1) / (2 * n))


@pytest.mark.parametrize(
    ("changes", "formula"),
    [
        ({}, "Q Kᵀ / √d_head = Q Kᵀ / √8"),
        ({"scale_attn_weights": False}, "Q Kᵀ"),
        ({"scale_attn_by_inverse_layer_idx": True}, "Q Kᵀ · 0.1768"),
    ],
)
def test_the_formula_of_the_scores_has_the_scale_of_the_layer(changes: dict[str, Any], formula: str) -> None:
    found = explain(SENTENCE, sharp_gpt2(**changes), tokenizer=gpt2_tokenizer(), layer=1)
    assert stage_words(found, "scores").formula == formula


# --- the walk-through ----------------------------------------------------------------------------------------------


def test_the_walk_through_of_a_post_norm_layer() -> None:
    text = of_bert(layer=1).report(width=80)
    titles = re.findall(r"^[ 1]\d  (\S.*?)  ", text, re.MULTILINE)
    assert titles == [
        "Input", "Queries", "Keys", "Values", "Split into heads", "Scores", "Mask", "Attention pattern",
        "Weighted values", "Concatenation", "Attention output", "Residual", "Layer norm after the residual",
        "Feed-forward: expand", "Feed-forward: gelu", "Feed-forward: contract", "Residual", "Output",
    ]  # fmt: skip
    assert "Post-norm (BERT)" in text
    assert "x = output of layer 0" in text
    assert "This is what layer 2 takes in." in text
    assert "for the first layer only" in text
    assert text.count("✓") == 13
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_walk_through_of_a_pre_norm_layer() -> None:
    text = of_gpt2(layer=2, every_layer=True).report(width=80)
    titles = re.findall(r"^[ 1]\d  (\S.*?)  ", text, re.MULTILINE)
    assert titles[1] == "Layer norm before the attention"
    assert titles[-2:] == ["Output", "Final layer norm"]
    assert "Pre-norm (GPT-2)" in text
    assert "the final layer norm takes in" in text.replace("\n    ", " ")
    assert "Every layer, each from what" in text
    assert "14 of 19 steps" in text


def test_the_first_layer_tells_content_from_position() -> None:
    text = of_bert(pair="the dog").report(width=80)
    assert "x = norm(word + position + segment)" in text
    assert "Segment" in text
    assert "all heads" in text
    alone = of_gpt2().report(width=80)
    assert "x = word + position\n" in alone
    assert "Segment" not in alone


def test_the_last_layer_of_a_bert_gives_the_last_hidden_state() -> None:
    assert "its last hidden state" in of_bert(layer=2).report(width=120)


def test_hostile_tokens_and_long_ones_are_shown_as_they_are() -> None:
    text = explain("[/b] the " + "believ" * 4, sharp_gpt2(), tokenizer=gpt2_tokenizer(), truncate=True).report(80)
    assert "[/b]" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_text_that_was_cut_says_so() -> None:
    found = of_bert("the cat " * 40, truncate=True)
    assert "tokens were left out (--truncate)" in found.report()
    assert found.document()["options"]["tokens_cut_off"] == 42


# --- documents ----------------------------------------------------------------------------------------------------


def test_the_document_has_every_step() -> None:
    found = of_gpt2(layer=2, every_layer=True)
    content = json.loads(json.dumps(found.document(["explain.png"]), allow_nan=False))
    assert content["attnviz"] == attnviz.__version__
    assert content["norm_order"] == "pre-norm"
    assert content["model"]["d_ff"] == 128
    assert content["figures"] == ["explain.png"]
    assert content["positions"] is None
    stages = {stage["name"]: stage for stage in content["stages"]}
    assert list(stages) == [stage.name for stage in found.stages.stages]
    assert stages["split"]["shape"] == [3, 4, len(found.tokens), 8]
    assert not stages["scores"]["compared"]
    assert stages["scores"]["error"] is None
    assert stages["output"]["place"] == "input of ln_f"
    assert stages["output"]["error"] <= stages["output"]["tolerance"] == 1e-4
    assert content["verification"]["stages_compared"] == 14
    assert [layer["layer"] for layer in content["verification"]["layers"]] == [0, 1, 2]
    rows = list(csv.DictReader(io.StringIO(explain_csv(content))))
    assert [row["name"] for row in rows] == list(stages)
    assert rows[0]["error"] == ""
    assert rows[1]["shape"] == f"{len(found.tokens)}x32"


def test_positions_are_in_the_document_of_the_first_layer() -> None:
    content = of_bert().document()
    positions = content["positions"]
    assert [head["id"] for head in positions["heads"]] == ["L0H0", "L0H1", "L0H2", "L0H3"]
    terms = positions["layer"]["terms"]
    assert terms.pop("segment") is None
    assert sum(terms.values()) == pytest.approx(1, abs=1e-5)
    assert content["verification"]["layers"] is None
    assert content["norm_order"] == "post-norm"
    assert of_gpt2().document()["positions"]["layer"]["segment"] is None


def test_everything_is_saved(tmp_path: Path) -> None:
    found = of_gpt2(layer=1)
    content = found.save(tmp_path / "out", formats=("png", "svg"), save_stages=True)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "explain.json", "explain.csv", "explain.png", "explain.svg", "captions.md", "stages.safetensors",
    }  # fmt: skip
    assert content["files"] == sorted(names)
    tensors = load_file(tmp_path / "out" / "stages.safetensors")
    assert set(tensors) == {stage.name for stage in found.stages.stages}
    assert torch.equal(tensors["output"], found.stages["output"].tensor)
    assert tensors["mask"].dtype == torch.bool
    assert "**explain.png, explain.svg**: Layer 1 of" in (tmp_path / "out" / "captions.md").read_text()


def test_another_layer_replaces_the_first_one_and_its_figure_of_positions(tmp_path: Path) -> None:
    of_bert().save(tmp_path)
    assert (tmp_path / "positions.png").is_file()
    of_bert(layer=1).save(tmp_path, figures=False)
    assert {path.name for path in tmp_path.iterdir()} == {"explain.json", "explain.csv"}
    (tmp_path / "stages.safetensors").write_text("mine")
    with pytest.raises(OutputError, match=r"stages\.safetensors"):
        of_bert().save(tmp_path)


def test_names_of_files_are_known() -> None:
    assert EXPLAIN.owns("positions.pdf")
    assert not EXPLAIN.owns("other.png")


def test_the_result_in_python() -> None:
    found = attnviz.explain(SENTENCE, model=sharp_bert(), tokenizer=bert_tokenizer())
    assert isinstance(found, attnviz.Explanation)
    assert repr(found).startswith("<Explanation of layer 0 of BertModel on 9 tokens: 18 steps, output within ")
    assert found.head == HeadId(0, 0)
    assert found.activation == "gelu"
    with pytest.raises(UsageError, match="unknown figure 'map': expected path or positions"):
        found.figure("map")
    assert len(found.figure("path").axes) == 3
    assert len(found.figure("positions").axes) == 2


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    of_bert(every_layer=True, progress=lambda *given: told.append(given))
    assert told == [("verifying", 1, 3), ("verifying", 2, 3), ("verifying", 3, 3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_explained(dtype: torch.dtype, tmp_path: Path) -> None:
    model: BertModel = sharp_bert().to(dtype)
    found = explain(SENTENCE, model, tokenizer=bert_tokenizer())
    assert "bfloat16" in found.report() or "float16" in found.report()
    found.save(tmp_path, save_stages=True)
    assert load_file(tmp_path / "stages.safetensors")["output"].dtype == dtype


@needs_minilm
@pytest.mark.parametrize("model", ["minilm", "tiny-gpt2"])
def test_the_built_in_models_are_explained(model: str) -> None:
    found = attnviz.explain(SENTENCE, model, device="cpu", every_layer=True)
    assert found.layers is not None
    assert max(end.output_error for end in found.layers) < 1e-6
    assert found.positions is not None
    assert found.positions.error < 1e-6


@needs_minilm
def test_a_head_of_minilm_that_looks_at_positions() -> None:
    """L0H2 attends by position: its scores owe nothing to the words, on any text."""
    found = attnviz.explain(SENTENCE, "minilm", device="cpu").positions
    assert found is not None
    assert found.heads[2].groups["position"] == pytest.approx(1.0, abs=0.05)
    assert (found.heads[1].groups["content"] or 0) > 0.8


# --- what Python may hand over -------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [HeadId(1, 2), "L1H2", " 1.2 "])
def test_a_head_may_be_an_id(head: Any) -> None:
    assert of_bert(head=head).head == HeadId(1, 2)


def test_a_head_may_be_a_number() -> None:
    assert of_bert(head=2, layer=1).head == HeadId(1, 2)
    assert of_bert(head=0).head == HeadId(0, 0)


@pytest.mark.parametrize(
    "options",
    [
        *({"head": head} for head in (True, 1.5, (1, 2), b"2", -1, 4, "9" * 5000, HeadId(-1, 0), [], object())),
        *({"layer": layer} for layer in ("0", 1.5, True, torch.tensor(1), [0])),
        *({"token": token} for token in (3, True, b"cat", ["cat"])),
    ],
)
def test_what_is_no_head_layer_or_token_is_one_message(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))) as caught:
        of_bert(**options)
    assert "from_token" not in str(caught.value)


@pytest.mark.parametrize("text", [None, 3, b"the cat", ["the cat"]])
def test_what_is_no_text_is_one_message(text: Any) -> None:
    with pytest.raises(TextError, match=f"expected the text as a string, found {type(text).__name__}"):
        of_bert(text)
    if text is not None:
        with pytest.raises(TextError, match="expected the pair as a string"):
            of_bert(pair=text)


@pytest.mark.parametrize("width", [1, 0, -5, "x", True, 1.5, None])
def test_what_is_no_width_is_one_message(width: Any) -> None:
    with pytest.raises(UsageError, match="expected a width of 20 columns or more"):
        of_bert().report(width)


def test_the_smallest_width_is_printed() -> None:
    assert "Verified" in of_bert().report(20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": None}, "expected a folder"),
        ({"formats": "png"}, r"write \['png'\]"),
        ({"formats": 3}, "expected a list of formats"),
        ({"formats": ["jpg"], "figures": False}, "unknown format 'jpg'"),
    ],
)
def test_what_cannot_be_saved_is_one_message(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        of_bert().save(**{"folder": tmp_path / "out", **options})
    assert not (tmp_path / "out").exists()


def test_steps_are_a_mapping() -> None:
    stages = of_bert().stages
    names = [stage.name for stage in stages.stages]
    assert list(stages) == names
    assert len(stages) == len(names) == 18
    assert dict(stages.items())["pattern"] is stages["pattern"]
    assert stages.get("nothing") is None
    for wrong in ("nothing", 0):
        with pytest.raises(UsageError, match=r"has no step .*: expected one of input, query") as caught:
            stages[wrong]  # type: ignore[index]
        assert isinstance(caught.value, KeyError)
        assert str(caught.value).startswith("layer 0 has no step")


def test_a_pair_for_a_model_of_one_token_type_is_refused() -> None:
    model = sharp_bert(type_vocab_size=1)
    for run in (explain, attnviz.analyze):
        with pytest.raises(TextError, match="one token type only"):
            run(SENTENCE, model=model, tokenizer=bert_tokenizer(), pair="the dog")
        run(SENTENCE, model=model, tokenizer=bert_tokenizer())


# --- wording -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "their dot product, scaled so that it does not grow with d_head."),
        ({"scale_attn_weights": False}, "their dot product, which this model does not scale."),
        ({"scale_attn_by_inverse_layer_idx": True}, "their dot product, scaled as this model's config has it."),
    ],
)
def test_the_sentence_of_the_scores_is_true(changes: dict[str, Any], said: str) -> None:
    found = explain(SENTENCE, sharp_gpt2(**changes), tokenizer=gpt2_tokenizer(), layer=1)
    assert stage_words(found, "scores").sentence.endswith(said)


def test_the_mask_of_a_pair_is_not_that_of_a_single_text() -> None:
    assert "in a single text" in stage_words(of_bert(), "mask").sentence
    assert stage_words(of_bert(pair="the dog"), "mask").sentence.endswith("masked in a pair of texts either.")


def test_one_token_is_not_tokens() -> None:
    found = of_gpt2("a")
    assert len(found.tokens) == 1
    assert "1 tokens" not in found.report(100) + repr(found)
    assert "1 token" in found.report(100)
    assert "1 token:" in repr(found)
    assert "1 token)" in plan_positions(found, Look()).notes[0]
