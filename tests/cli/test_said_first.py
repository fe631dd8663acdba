"""What cannot work is said before a model reads anything: counts, architectures, files and options."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PreTrainedModel
from typer.testing import CliRunner

from attnviz.cli.program import app
from tests.support.corpora import sentences

MEASURED_FIRST = '[[claim]]\nhead = "L1H0"\nrole = "previous-token"\ncorpus = "texts.txt"\n[[claim]]\n'
CLAIMS = {
    "gone": 'head = "L1H0"\nrole = "previous-token"\ncorpus = "gone.txt"',
    "distance": 'distance_to = "BERT"\ncorpus = "texts.txt"\nat_most = 0.5',
    "model": 'distance_to = "./gone"\ntext = "one two"\nat_most = 0.5',
    "metric": 'head = "L1H0"\nablate = "cosine"\ncorpus = "texts.txt"\nat_most = 0.5',
    "long": f'head = "L1H0"\nlabel = "induction"\ntext = "{"one two " * 300}"',
}
"""A second claim of a file, which cannot be measured on tiny-gpt2."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bert_folder: Path) -> Iterator[Path]:
    """A folder with texts and claims, in which no model may run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sentences(tmp_path / "texts.txt", 40)
    (tmp_path / "words.txt").write_text("the 3\ncat 1\n")
    (tmp_path / "table.csv").write_text("text,title\nthe cat ran,a cat\n")
    (tmp_path / "again").mkdir()
    sentences(tmp_path / "again" / "texts.txt", 40)
    (tmp_path / "score.toml").write_text('[[claim]]\nhead = "L0H0"\nscore = "entropy"\ntext = "one two"\nat_least = 0')
    (tmp_path / "role.toml").write_text(MEASURED_FIRST.removesuffix("[[claim]]\n"))
    (tmp_path / "bert").symlink_to(bert_folder)
    for name, claim in CLAIMS.items():
        (tmp_path / f"{name}.toml").write_text(MEASURED_FIRST + claim.replace("BERT", "./bert"), encoding="utf-8")

    def refuse(module: nn.Module, _: object) -> None:
        assert not isinstance(module, PreTrainedModel), "a model runs"

    handle = register_module_forward_pre_hook(refuse)
    yield tmp_path
    handle.remove()


COLUMNS = ["--text-column zz", "--pair-column zz", "--label-column zz"]
UNUSED = [*COLUMNS, "--truncate", "--frequencies gone.txt"]
LINES = [
    "check --init texts.txt --published wang-2022",
    "check --init texts.txt --published gu-2024 new.toml",
    "check texts.txt",
    "check gone.toml --published gu-2024",
    "check --published wang-2022 --limit 16",
    "check --published gu-2024 --limit 99 texts.txt",
    "check --published clark-2019 --limit 14 texts.txt texts.txt",
    *(f"check --published {name} -m ./bert texts.txt ./again/texts.txt" for name in ("clark-2019", "voita-2019")),
    "check --published gu-2024 texts.txt texts.txt --limit 60",
    *(f"check score.toml {option}" for option in (*COLUMNS, "--limit 30", "--frequencies gone.txt")),
    *(f"check --published gould-2023 {option}" for option in (*UNUSED, "--limit 30")),
    *(f"check --published wang-2022 {option}" for option in UNUSED),
    *(f"check --published clark-2019 texts.txt {option}" for option in UNUSED),
    *(f"check {what} --truncate" for what in ("role.toml", "--init texts.txt new.toml")),
    *(f"check {what} --label-column zz" for what in ("role.toml", "--init texts.txt new.toml")),
    "check --published wang-2022 -m ./bert",
    "check --published wu-2024 -m ./bert texts.txt",
    "check --published mcdougall-2023 -m ./bert texts.txt",
    *(f"check {name}.toml" for name in CLAIMS),
    "compare --corpus table.csv -m ./bert -m tiny-gpt2 --text-column text --label-column title",
    'compare "one two" -m ./bert -m tiny-gpt2',
    'compare "one two" -m ./bert -m ./bert --select L9H9',
    'heads "one two" --select L9H9',
    'heads "one two" --relation obj --no-syntax',
    "heads texts.txt --each-line --select L9H9",
    'outputs "one two" --select L9H9',
    "circuits --select L9H9",
    "ablate texts.txt --select L9H9",
    "profile texts.txt --figures relations --no-syntax",
    "profile --repeats -m tiny-gpt2 -m ./gone",
    "profile --repeats --frequencies words.txt",
    "check --init texts.txt -",
    "profile texts.txt --parser gone --no-syntax",
    "compare --corpus texts.txt -m tiny-gpt2 -m tiny-gpt2 --parser gone --no-syntax",
    "ablate --repeats --truncate",
    "profile table.csv -m ./bert --pair-column text",
    "profile table.csv -m ./bert --text-column title --pair-column title",
    'patch "one two" --corrupt "one one" --from L0H0',
    'patch "one two" --corrupt "one one" --networks run',
    'patch "one two" --corrupt "one one" --self-repair',
    'patch "one two" --corrupt "one one" --to logits --select L0',
]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.thorough] * any(map(line.endswith, UNUSED))) for line in LINES]
)
def test_it_is_said_before_any_model_runs(line: str) -> None:
    words = shlex.split(line)
    done = CliRunner().invoke(app, [*words, *([] if "-m" in words else ["-m", "tiny-gpt2"]), "--device", "cpu"])
    assert done.exit_code in (1, 2), done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.usefixtures("place")
def test_what_can_work_runs() -> None:
    """So that the lines above could fail."""
    done = CliRunner().invoke(app, ["heads", "one two", "-m", "tiny-gpt2", "--device", "cpu"])
    assert isinstance(done.exception, AssertionError)
