"""The trained GPT-2 that ships with attnviz: found without a network, real, and with the heads that it is for."""

import importlib.util
import sys
from functools import partial
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import attnviz
from attnviz import __version__
from attnviz.errors import CheckpointError
from attnviz.models.sources import find_checkpoint

COUNTING = "one two three four five one two three four five"
FOLDER = Path(str(resources.files("attnviz"))) / "data" / "tiny-gpt2"
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_tiny_gpt2.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_tiny_gpt2", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()


def patterns(model, ids):
    with torch.no_grad():
        return torch.stack(model(ids, output_attentions=True).attentions)


def diagonal(pattern, offset):
    return torch.diagonal(pattern, offset=offset, dim1=-2, dim2=-1).mean(dim=(1, 3))


def test_it_is_part_of_the_package_and_small_and_missed_where_it_is_not(monkeypatch, tmp_path):
    source = find_checkpoint("tiny-gpt2")
    assert (source.name, source.folder, source.revision) == ("tiny-gpt2", FOLDER, f"attnviz=={__version__}")
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert sum(files.values()) <= 8_000_000
    monkeypatch.setattr("attnviz.models.sources.__file__", str(tmp_path / "sources.py"))
    with pytest.raises(CheckpointError, match="reinstall"):
        find_checkpoint("tiny-gpt2")


def test_random_tokens_repeated_show_previous_token_and_induction_heads(model):
    """Wang et al. 2022: token ids uniform, repeated once, no BOS, means of attention diagonals."""
    length = 64
    once = torch.randint(1, model.config.vocab_size, (8, length), generator=torch.Generator().manual_seed(99))
    pattern = patterns(model, torch.cat([once, once], 1))
    assert diagonal(pattern, -1).max() >= 0.6
    assert diagonal(pattern, 1 - length).max() >= 0.6


def test_heads_lists_the_induction_head_above_its_baseline():
    content = attnviz.analyze(COUNTING, "tiny-gpt2", syntax=False).document()
    assert {"induction", "previous-token"} <= {head["label"] for head in content["heads"]}
    scores = [pattern for head in content["heads"] for pattern in head["patterns"] if pattern["name"] == "induction"]
    best = max(scores, key=lambda pattern: pattern["score"])
    assert best["passed"]
    assert best["score"] > best["baseline"]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    rng = np.random.default_rng(0)
    words = ["the", "cat", "dog", "house", "ran", "saw", "away", "and", "“quoted”", "in"]
    for name in ("a", "b", "c"):
        lines = [" ".join(rng.choice(words, size=12)) for _ in range(100)]
        (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def run(script, books, out, **options):
    """With a model of the same parts, but small."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(script, "CHECKED", 3)
        patched.setattr(script, "Recipe", partial(script.Recipe, vocabulary=300, d_model=32))
        script.main(books, out=out, held_out="c", batch_size=1, seed=3, device="cpu", sharpening_steps=3, **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()


@pytest.mark.thorough
def test_training_goes_on_after_interruptions_to_the_same_result(script, books, tmp_path, monkeypatch):
    steps, one_step, out, whole = [], script.one_step, tmp_path / "parts", tmp_path / "whole"
    run(script, books, whole, steps=6, save_every=2)

    def interrupted(*arguments):
        steps.append(1)
        if len(steps) in (6, 10):  # in the first stage, and in the last
            raise KeyboardInterrupt
        return one_step(*arguments)

    monkeypatch.setattr(script, "one_step", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(script, books, out, steps=6, save_every=2)
    run(script, books, out, steps=6, save_every=2)
    assert len(steps) < 2 * 9  # those since the last saved state again, no others
    expected, found = weights(whole), weights(out)
    assert all(torch.equal(weight, found[name]) for name, weight in expected.items())
    assert not (out / "training-state.pt").exists()
    assert (whole / "README.md").read_text() == (out / "README.md").read_text()
