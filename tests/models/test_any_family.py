"""Families without a declaration: patterns from the model's own queries and keys, named as what they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.masking_utils import AttentionMaskInterface

import attnviz
from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import ArchitectureError, CheckpointError, TextError, VerificationError
from attnviz.models.families.undeclared import Undeclared
from attnviz.reference import attention
from tests.support.drawn import texts_of
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import save_checkpoint
from tests.support.undeclared import UNDECLARED, config_of, undeclared_model

TOKENIZER = sentencepiece_tokenizer()
TEXT = "the cat that i saw ran away."
SAID = "not verified: level 1 of 4"


def analyzed(model: Any, text: str = TEXT, **options: Any) -> Analysis:
    return attnviz.analyze(text, model, tokenizer=TOKENIZER, syntax=False, **{"any_family": True, **options})


@pytest.mark.draws
@pytest.mark.parametrize("family", UNDECLARED)
def test_patterns_are_those_of_the_models_own_eager_attention(family: str) -> None:
    model = undeclared_model(family)
    result = analyzed(model)
    inputs = result.tokens.model_inputs(torch.device("cpu"))
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        own = model(**inputs, output_attentions=True).attentions
    for layer, pattern in enumerate(own):
        assert (result.layer_patterns(layer) - pattern[0]).abs().max() < 1e-6
    assert result.verification.level == 1
    assert result.verification.heads_compared == len(result.heads) == 8
    assert result.checkpoint.architecture.name == family
    assert own[0].max(-1).values.mean() > own[0].mean()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_every_number_format(dtype: torch.dtype) -> None:
    assert analyzed(undeclared_model("seed_oss", dtype=dtype)).verification.level == 1


def test_the_model_gets_its_own_settings_back() -> None:
    model = undeclared_model("seed_oss")
    model.set_attn_implementation("sdpa")
    model.train()
    analyzed(model)
    assert (model.config._attn_implementation, model.training) == ("sdpa", True)


@pytest.mark.draws
@pytest.mark.usefixtures("undrawn")
def test_it_is_called_not_verified_wherever_it_is_told(tmp_path: Path) -> None:
    result = analyzed(undeclared_model("helium"))
    report = " ".join(result.report(100).split())
    assert report.startswith("Not verified: level 1 of 4. The patterns of 8 heads in 2 layers of HeliumModel")
    assert "helium" in report
    assert "Verified" not in report
    assert SAID in repr(result)
    content = result.save(tmp_path, figures=["overview", "heads"], select=["L0H0"])
    assert (content["verification"]["level"], content["verification"]["passed"]) == (1, False)
    assert content["verification"]["layers"][0]["pattern_error"] <= 1e-6
    assert content["verification"]["layers"][0]["output_error"] is None
    captions = (tmp_path / "captions.md").read_text()
    assert captions.count(SAID) == 2
    for name in ("overview", "map"):
        assert SAID in " ".join(" ".join(texts_of(result.figure(name))).split()), name
    page = result.page()
    assert "Not verified: level 1 of 4" in page
    assert '"--any-family"' in page


def test_a_family_that_is_reproduced_is_verified_with_the_option_too() -> None:
    result = analyzed(sharp_llama())
    assert result.verification.level == 4
    assert "\nVerified " in result.report()
    assert result.document()["verification"]["passed"] is True
    assert "verified" not in result.figure_context.model


# --- what is wrong must fail -----------------------------------------------------------------------------------------


def test_a_mask_that_is_lost_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask of the same name transformers gives none, and the model attends to what follows."""
    monkeypatch.setattr(AttentionMaskInterface, "register", lambda *_: None)
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, "attnviz", raising=False)
    wrong = r"over the keys that 'seed_oss' allows is not its attention\. The largest difference is in layer 0, head \d"
    with pytest.raises(VerificationError, match=wrong):
        analyzed(undeclared_model("seed_oss"))


def test_a_lost_mask_that_we_would_share_fails_by_the_final_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionMaskInterface, "register", lambda *_: None)
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, "attnviz", raising=False)
    right = attention.allowed_positions
    monkeypatch.setattr(attention, "allowed_positions", lambda mask, _, __, *at: right(mask, False, None, *at))
    with pytest.raises(VerificationError, match="final states are not those of the untouched model: they differ by up"):
        analyzed(undeclared_model("seed_oss"))


WRONG: dict[str, tuple[str, str, Any]] = {
    "not causal": ("seed_oss", "allowed_positions", lambda mask, causal, *more: allowed(mask, False, *more)),
    "causal": ("ernie", "allowed_positions", lambda mask, causal, *more: allowed(mask, True, *more)),
    "no window": ("ministral", "allowed_positions", lambda mask, causal, _, *at: allowed(mask, causal, None, *at)),
    "a window off by one": (
        "ministral", "allowed_positions", lambda mask, causal, window, *at: allowed(mask, causal, window + 1, *at)
    ),
    "another scale": ("seed_oss", "attention_scores", lambda q, k, scale: scores(q, k, 1.1 * scale)),
    "another order of groups": (
        "helium", "repeat_kv", lambda x, n: x.repeat(1, n // x.shape[1], 1, 1)
    ),
}  # fmt: skip
allowed, scores = attention.allowed_positions, attention.attention_scores


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_recomputation_fails(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, name, wrong = WRONG[mistake]
    model = undeclared_model(family)
    if family == "ernie":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(5)
    assert analyzed(model)
    monkeypatch.setattr(f"attnviz.reference.attention.{name}", wrong)
    with pytest.raises(VerificationError, match="is not its attention"):
        analyzed(model)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "changes", "message"),
    [
        ("Bloom", {}, "the attention of 'bloom' does not go through"),
        ("Mamba", {}, "the attention of 'mamba' does not go|'mamba' has num_attention_heads=None"),
        ("Blenderbot", {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}, "'blenderbot' is an encoder-decoder"),
        ("Llama4Text", {"num_key_value_heads": 2, "head_dim": 8}, "layer_types='chunked_attention'"),
        ("ViT", {}, "'vit' reads no text"),
        ("JetMoe", {}, "not every layer of this 'jetmoe' goes once through"),
    ],
)
def test_what_cannot_be_recomputed_is_refused_by_name(prefix: str, changes: dict[str, Any], message: str) -> None:
    model = getattr(transformers, f"{prefix}Model")(config_of(prefix, **changes)).eval()
    with pytest.raises(ArchitectureError, match=message):
        analyzed(model)


@pytest.mark.parametrize("command", ["explain", "head_outputs", "rollout", "ablate", "profile_heads", "compare"])
def test_every_other_command_refuses_them(command: str, tmp_path: Path) -> None:
    result = analyzed(undeclared_model("seed_oss"))
    (corpus := tmp_path / "corpus.txt").write_text("the cat ran")
    given: dict[str, Any] = {"compare": (result, result), "profile_heads": (result.checkpoint, [corpus])}
    run: Any = getattr(attnviz, command)
    with pytest.raises(ArchitectureError, match=r"'seed_oss'.*heads --any-family"):
        run(*given.get(command, (TEXT, result.checkpoint)), **{"syntax": False} if command == "profile_heads" else {})


def test_code_of_someone_else_is_refused() -> None:
    class ErnieModel(transformers.ErnieModel):
        pass

    with pytest.raises(ArchitectureError, match=r"own ErnieModel, found tests\.models\.test_any_family"):
        analyzed(ErnieModel(config_of("Ernie")))


def test_without_the_option_it_is_refused_and_the_option_named() -> None:
    with pytest.raises(ArchitectureError, match=r"'seed_oss'; expected one of: .*; attnviz heads --any-family"):
        analyzed(undeclared_model("seed_oss"), any_family=False)
    with pytest.raises(TextError, match="cannot write"):
        analyzed(undeclared_model("seed_oss"), generate=3)


# --- from files ------------------------------------------------------------------------------------------------------


@pytest.mark.draws
@pytest.mark.parametrize(("family", "task"), [("helium", "ForCausalLM"), ("ernie", "Model"),
                                              ("ultrabert", "ForMaskedLM")])  # fmt: skip
def test_checkpoints_load_with_and_without_a_head(family: str, task: str, tmp_path: Path) -> None:
    whole = undeclared_model(family, task)
    folder = save_checkpoint(whole, TOKENIZER, tmp_path / "model")
    result = attnviz.analyze(TEXT, str(folder), any_family=True, syntax=False, device="cpu")
    expected = analyzed(whole)
    assert torch.equal(result.pattern("L1H2"), expected.pattern("L1H2"))
    assert isinstance(result.checkpoint.architecture, Undeclared)


def test_weights_that_are_missing_are_an_error(tmp_path: Path) -> None:
    folder = save_checkpoint(undeclared_model("seed_oss"), TOKENIZER, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"missing \(layers\.2\."):
        attnviz.analyze(TEXT, str(folder), any_family=True, syntax=False, device="cpu")


def test_the_command_says_it_first(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from attnviz.cli.program import app

    folder = save_checkpoint(undeclared_model("seed_oss"), TOKENIZER, tmp_path / "model")
    options = ["-m", str(folder), "--figures", "none", "--no-syntax", "-o", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, ["heads", TEXT, *options])
    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1
    done = CliRunner().invoke(app, ["heads", TEXT, *options, "--any-family"])
    assert (done.exit_code, done.stdout.partition(":")[0]) == (0, "Not verified")
