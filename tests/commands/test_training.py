"""Where induction heads appear in training: a model without any and one with are two steps of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

import attnviz
from attnviz.cli.program import app
from attnviz.commands.profile.measure import untrained_copy
from attnviz.commands.profile.training import measure
from attnviz.errors import CorpusError, OutputError, UsageError
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.models.sources import find_checkpoint
from tests.support.corpora import sentences
from tests.support.hub import FIRST, SECOND, Hub, files_of, put
from tests.support.models import gpt2_tokenizer, save_checkpoint, sharp_gpt2
from tests.support.tolerances import SHARP_32, SUMS_32

TINY = "tiny-gpt2"


@pytest.fixture(scope="module")
def steps() -> list[Any]:
    """Tiny-gpt2 freshly initialised, and as it is."""
    trained, _ = open_checkpoint(TINY, device="cpu")
    return [untrained_copy(trained, 5), trained]


@pytest.mark.draws
def test_induction_heads_appear_at_the_step_that_has_them(steps: list[Any]):
    found = attnviz.profile_training(steps)
    before, after = found.steps
    assert (before.induction, after.induction) == (0, 4)
    assert found.first is after
    assert after.head == "L1H0"
    assert before.prefix_matching < 0.02 < 0.7 < after.interval[0] < after.prefix_matching
    assert abs(before.copying or 0) < 0.3
    assert (after.copying or 0) > 0.95
    assert found.untrained is not None
    assert found.untrained.prefix_matching < 0.02
    roles = attnviz.profile_heads(steps[1], [], repeats=True, control=False).roles
    best = max(role.score for role in roles if role.role == "induction")
    assert after.prefix_matching == pytest.approx(best, abs=SUMS_32)
    assert found.steps[0].in_context is None
    assert "no corpus" in found.why_no_loss
    assert found.contexts == 0


@pytest.mark.draws
def test_losses_are_those_of_a_plain_forward_pass(tmp_path: Path):
    model, tokenizer = sharp_gpt2(3, GPT2LMHeadModel, n_positions=512), gpt2_tokenizer()
    corpus = sentences(tmp_path / "long.txt", 700)
    found = attnviz.profile_training([from_loaded(model, tokenizer)] * 2, [corpus], control=False)
    ids = tokenizer(corpus.read_text(encoding="utf-8"))["input_ids"]
    changes = []
    for at in range(len(ids) // 500):
        row = torch.tensor([[tokenizer.bos_token_id, *ids[500 * at : 500 * at + 500]]])
        with torch.no_grad():
            logs = model(row[:, :500]).logits[0].log_softmax(-1)
        changes.append(float(logs[49, row[0, 50]] - logs[499, row[0, 500]]))
    assert found.contexts == len(changes) > 2
    assert found.steps[0].in_context == pytest.approx(sum(changes) / len(changes), abs=SHARP_32)
    assert found.untrained is None


@pytest.mark.draws
@pytest.mark.usefixtures("few_repeats")
def test_an_interrupted_run_goes_on_with_the_next_step(
    steps: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, kept, left, measured = attnviz.profile_training(steps), tmp_path / "kept", [2], measure._measured

    def interrupted(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return measured(*arguments)

    monkeypatch.setattr(measure, "_measured", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attnviz.profile_training(steps, unfinished=kept)
    left[0] = 1
    assert attnviz.profile_training(steps, unfinished=kept).steps == whole.steps
    with pytest.raises(OutputError, match="seed"):
        attnviz.profile_training(steps, unfinished=kept, seed=1)


@pytest.mark.usefixtures("few_repeats")
def test_weights_that_were_replaced_between_two_runs_are_not_taken_for_the_measured_ones(
    steps: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, kept, measured = tmp_path / "step", tmp_path / "kept", measure._measured
    save_checkpoint(GPT2LMHeadModel(steps[0].config), steps[0].tokenizer, folder)
    stopped = iter([measured])

    def interrupted(*arguments: Any) -> Any:
        return next(stopped, None)(*arguments)

    monkeypatch.setattr(measure, "_measured", interrupted)
    with pytest.raises(TypeError):
        attnviz.profile_training([folder, TINY], unfinished=kept, control=False)
    monkeypatch.setattr(measure, "_measured", measured)
    save_checkpoint(GPT2LMHeadModel(steps[0].config), steps[0].tokenizer, folder)
    with pytest.raises(OutputError, match="other weights"):
        attnviz.profile_training([folder, TINY], unfinished=kept, control=False)


def test_revisions_of_a_cached_model_are_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[Any]):
    hub = Hub(tmp_path / "hub", monkeypatch)
    folder = find_checkpoint(TINY).folder
    fresh = GPT2LMHeadModel(steps[0].config)
    untrained = save_checkpoint(fresh, steps[0].tokenizer, tmp_path / "fresh")
    put(hub.cache, "me/it", files_of(untrained), commit=FIRST, ref="step0")
    put(hub.cache, "me/it", files_of(folder), commit=SECOND, ref="step9")
    monkeypatch.chdir(tmp_path)
    options = ["--repeats", "--revisions", "step0,step9", "-m", "me/it", "-o", "out", "--no-control"]
    result = CliRunner().invoke(app, ["profile", *options])
    assert result.exit_code == 0, result.output
    document = json.loads(Path("out/profile-training.json").read_text(encoding="utf-8"))
    assert [(step["step"], step["induction"]) for step in document["steps"]] == [("step0", 0), ("step9", 4)]
    assert [model["revision"] for model in document["models"]] == [FIRST, SECOND]
    assert Path("out/profile-training-steps.png").exists()
    assert not list(tmp_path.glob("*.unfinished*"))


MISTAKES = [
    (["--revisions", "a,b", "-m", "x/y"], "--repeats"),
    (["--repeats", "--revisions", "a,b", "-m", TINY], "only a hub id has revisions"),
    (["--repeats", "--revisions", "a,b", "-m", "x/y", "-m", "x/z"], "found 2 models"),
    (["--repeats", "--revisions", "a", "-m", "x/y"], "two steps"),
    (["--repeats", "-m", TINY, "-m", TINY, "--no-syntax"], "--no-syntax is about one model"),
]


@pytest.mark.parametrize(("typed", "word"), MISTAKES, ids=[" ".join(each[0]) for each in MISTAKES])
def test_mistakes_are_told(typed: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["profile", *typed])
    assert result.exit_code in (1, 2)
    assert word in result.stderr


def test_what_has_no_in_context_score_says_why(tmp_path: Path, bert_folder: Path, steps: list[Any]):
    corpus = sentences(tmp_path / "short.txt", 5)
    assert "256 positions" in attnviz.profile_training(steps, [corpus], control=False).why_no_loss
    found = attnviz.profile_training([str(bert_folder), str(bert_folder)], [corpus], control=False)
    assert (found.steps[0].copying, found.why_no_loss) == (None, "the model predicts no next tokens")
    long = from_loaded(sharp_gpt2(0, GPT2LMHeadModel, n_positions=512), gpt2_tokenizer())
    with pytest.raises(CorpusError, match="500 tokens"):
        attnviz.profile_training([long, long], [corpus], control=False)
    with pytest.raises(UsageError, match="two steps"):
        attnviz.profile_training([long])
