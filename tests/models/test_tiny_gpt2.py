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
from transformers import AutoModelForCausalLM, AutoTokenizer

import attnviz
from attnviz import __version__
from attnviz.errors import CheckpointError
from attnviz.models.sources import find_checkpoint
from tests.conftest import SHARED

COUNTING = "one two three four five one two three four five"
FOLDER = Path(str(resources.files("attnviz"))) / "data" / "tiny-gpt2"
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_tiny_gpt2.py"

needs_books = pytest.mark.skipif(not (SHARED / "books").is_dir(), reason="needs the novels of shared/data")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The training script as a module."""
    spec = importlib.util.spec_from_file_location("train_tiny_gpt2", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()


def patterns(model, ids):
    """[layer, batch, head, n, n], by transformers alone."""
    with torch.no_grad():
        return torch.stack(model(ids, output_attentions=True).attentions)


def diagonal(pattern, offset):
    """Mean attention on a diagonal, by layer and head."""
    return torch.diagonal(pattern, offset=offset, dim1=-2, dim2=-1).mean(dim=(1, 3))


# --- where it is


def test_it_is_part_of_the_package_and_small_and_missed_where_it_is_not(monkeypatch, tmp_path):
    source = find_checkpoint("tiny-gpt2")
    assert (source.name, source.folder, source.revision) == ("tiny-gpt2", FOLDER, f"attnviz=={__version__}")
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) >= {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert sum(files.values()) <= 8_000_000
    monkeypatch.setattr("attnviz.models.sources.__file__", str(tmp_path / "sources.py"))
    with pytest.raises(CheckpointError, match="force-reinstall"):
        find_checkpoint("tiny-gpt2")


# --- what its heads do, measured without attnviz


def test_random_tokens_repeated_show_previous_token_and_induction_heads(model):
    """Wang et al. 2022: token ids uniform, repeated once, no BOS, means of attention diagonals."""
    length = 64
    once = torch.randint(1, model.config.vocab_size, (8, length), generator=torch.Generator().manual_seed(99))
    pattern = patterns(model, torch.cat([once, once], 1))
    assert diagonal(pattern, -1).max() >= 0.6
    assert diagonal(pattern, 1 - length).max() >= 0.6


@needs_books
@pytest.mark.parametrize("largest", [400_000, pytest.param(10**9, marks=pytest.mark.slow)])
def test_the_held_out_novel_is_predicted_clearly_better_than_by_a_bigram(model, script, largest, tmp_path):
    """Than by that of the card, which has read all books, and by one of the small books (slow: of all of them) here."""
    for book in (SHARED / "books").glob("*.txt"):
        if book.stat().st_size < largest:
            (tmp_path / book.name).symlink_to(book)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER).backend_tokenizer
    books, held_out = script.read_books(tmp_path, "treasure-island")
    text = script.encode(tokenizer, held_out)[: 64 * 256]
    losses = script.n_gram_losses(np.concatenate(list(script.books_as_ids(tokenizer, books))), text, 256, 4096)
    found = script.held_out_loss(model, text, 256)
    assert found < losses["bigram"] - 0.2 < losses["unigram"] - 0.2
    card = [line.split("|") for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()]
    stated = {row[1].strip(): float(row[2]) for row in card if len(row) > 3 and row[1].strip() in {"model", *losses}}
    assert found == pytest.approx(stated["model"], abs=0.2)  # the card's is of the whole novel
    assert losses["unigram"] == pytest.approx(stated["unigram"], abs=0.2)
    assert stated["model"] < stated["bigram"] - 0.2 < losses["bigram"]


# --- what attnviz says of it


def test_heads_lists_the_induction_head_with_its_score_and_baseline():
    found = attnviz.analyze(COUNTING, "tiny-gpt2", syntax=False)
    content, printed = found.document(), found.report(100, verbose=True)
    labels = {head["id"]: head["label"] for head in content["heads"]}
    assert {"induction", "previous-token"} <= set(labels.values())
    (line,) = [line for line in printed.splitlines() if line.startswith("induction ")]
    scores = [
        (pattern["score"], head["id"], pattern)
        for head in content["heads"]
        for pattern in head["patterns"]
        if pattern["name"] == "induction"
    ]
    score, best, pattern = max(scores, key=lambda entry: entry[0])
    assert f"{best} {score:.2f} ({pattern['on_repeats']:.2f})" in line
    assert f" {pattern['baseline']:.2f} " in line
    assert pattern["passed"]


# --- how it was made


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small books and a third to hold out."""
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
