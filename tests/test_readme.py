"""The README says what the program does: its commands run as written, its options and numbers are the program's."""

import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from attnviz.figures.figure_sets import FIGURES
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from typer.testing import CliRunner

from attnviz.attention.tolerances import TOLERANCES
from attnviz.cli.program import app
from attnviz.errors import AttnvizError
from attnviz.figures.look import Look
from attnviz.patterns.verdicts import BROAD_SHARE, ENOUGH, MAJORITY, MARGIN, SINK_ONLY, SINK_SHARE
from tests.conftest import SHARED, needs_minilm, needs_parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = list(re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S))
COMMANDS = [line for block in SHELL for line in block.splitlines() if line.startswith(("attnviz", "echo"))]


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def python_with(words: str) -> str:
    (block,) = [block for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if words in block]
    return str(block)


@needs_minilm
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_run_as_written(command: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kind = re.findall(r"attnviz ([a-z]+)", command)[0]
    model = "tiny-gpt2" if "tiny-gpt2" in command else "minilm"
    folder = model if kind in ("heads", "profile") else f"{kind}-{model}"
    if kind == "models":
        assert done.stdout.count("minilm")
    else:
        assert (tmp_path / "attnviz-out" / folder / f"{kind}.json").is_file()


def test_there_are_commands_to_run() -> None:
    assert len(COMMANDS) == 21


def test_the_two_commands_install_with_the_constraints_of_ci() -> None:
    first, second = (block.strip() for block in SHELL[:2])
    assert first.startswith("python3 -m venv .venv && .venv/bin/pip install -c .ci/constraints.txt")
    assert first.endswith('attnviz heads "The cat that I saw ran away"')
    assert second.endswith("-m pytest")
    assert "<!-- command: test -->\n```sh\n" + second in README


def test_ci_runs_the_second_command_exactly_as_written() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extract = re.search(r"command=\$\((awk .*? README\.md)\)", script, re.S)
    assert extract is not None
    found = subprocess.run(extract[1], shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert found == SHELL[1].strip()


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("heads", "Options of `attnviz heads`"),
        ("profile", "What a head does in general: `attnviz profile`"),
        ("compare", "What changed: `attnviz compare`"),
        ("explain", "Inside a layer: `attnviz explain`"),
        ("outputs", "What a head writes: `attnviz outputs`"),
        ("ablate", "Without a head: `attnviz ablate`"),
        ("rollout", "Through all layers: `attnviz rollout`"),
        ("models", "Which model: `attnviz models`"),
    ],
)
def test_the_options_of_the_readme_are_the_options_of_the_program(command: str, title: str) -> None:
    table = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    listed = {option for cell in table for option in re.findall(r"--[a-z-]+", cell)}
    shown = set(re.findall(r"--[a-z-]+", CliRunner().invoke(app, [command, "--help"], terminal_width=200).stdout))
    switches = {option.replace("--no-", "--") for option in shown if option.startswith("--no-")}
    assert listed - switches == shown - {"--help"} - switches


def test_the_thresholds_of_the_readme_are_the_thresholds_of_the_program() -> None:
    text = section("How to read the numbers")
    assert f"`sink` above {SINK_ONLY}" in text
    assert f"`sink` above {SINK_SHARE}" in text
    assert f"above {MAJORITY} (Clark et al. 2019) and {round(MARGIN * 100)} points" in text
    assert f"at least {BROAD_SHARE:.2f} of uniform" in text
    assert f"below n = {ENOUGH}" in text


def test_the_tolerances_of_the_readme_are_the_tolerances_of_the_program() -> None:
    text = section("How to read the numbers")
    for dtype, written in (
        (torch.float32, "{0.pattern:.0e} in float32"),
        (torch.float64, "{0.pattern:.0e} in float64"),
        (torch.float16, "{0.pattern:.0e} and {0.output:.0e} in float16"),
        (torch.bfloat16, "{0.pattern:.0e} and {0.output:.0e} in bfloat16"),
    ):
        assert re.sub(r"e-0", "e-", written.format(TOLERANCES[dtype])) in text


@needs_minilm
@needs_parser
def test_the_table_of_the_readme_is_what_the_program_prints() -> None:
    import attnviz

    printed = attnviz.analyze("The cat that I saw ran away", device="cpu").report(width=80)
    shown = README.split("```text\n")[1].split("```")[0].splitlines()
    numbers = [line for line in shown if re.match(r"L\dH|Head|previous-token|nsubj|Patterns", line)]
    assert len(numbers) == 8
    for line in numbers:
        assert line in [printed_line.rstrip() for printed_line in printed.splitlines()]


@needs_minilm
@pytest.mark.skipif(not SHARED.exists(), reason="needs the treebank")
def test_the_relations_of_the_readme_are_what_the_program_prints() -> None:
    from attnviz import profile_heads

    profile = profile_heads("minilm", [SHARED / "ud" / "en_ewt-ud-dev.conllu"], device="cpu")
    printed = [line.split() for line in profile.report(100).splitlines()]
    shown = section("What a head does in general: `attnviz profile`").split("```text\n")[2].split("```")[0].splitlines()
    assert [line.split() in printed for line in shown if line[0] != "─"] == [True] * 4


def test_the_table_of_tiny_gpt2_is_what_the_program_prints() -> None:
    import attnviz

    text = "one two three four five one two three four five"
    printed = attnviz.analyze(text, "tiny-gpt2", device="cpu").report(width=80)
    shown = section("Your text, your model").split("```text\n")[2].split("```")[0].splitlines()
    numbers = [line for line in shown if line[0] not in "─."]
    assert len(numbers) == 3
    for line in numbers:
        assert line in [printed_line.rstrip() for printed_line in printed.splitlines()]


def test_the_profile_in_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("The cat ran away.\nThe dog saw the cat.\n", encoding="utf-8")
    code = python_with("profile_heads(")
    names: dict[str, object] = {"attnviz": importlib.import_module("attnviz")}
    exec(compile(code, "README.md", "exec"), names)
    found = {str(role.id) for role in names["profile"].roles if role.role == "induction" and role.passed}  # type: ignore[attr-defined]
    assert {"L1H0", "L1H1", "L1H2", "L1H3"} == found
    assert Path("results/profile.json").is_file()


@needs_minilm
def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = python_with("print(analysis.report")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    analysis = names["analysis"]
    assert analysis.head("L1H8").label == "next-token"  # type: ignore[attr-defined]
    assert analysis.head("L1H8").statistics["next"] == pytest.approx(0.90, abs=0.005)  # type: ignore[attr-defined]
    assert analysis.pattern("L1H8").shape == (9, 9)  # type: ignore[attr-defined]
    assert (tmp_path / "L1H8.png").is_file()
    assert (tmp_path / "results" / "overview.pdf").is_file()


def test_every_error_is_of_the_family_that_the_readme_names() -> None:
    from attnviz import errors

    assert all(issubclass(getattr(errors, name), AttnvizError) for name in errors.__all__)


@needs_minilm
def test_the_python_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "explore_heads.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the model is still set to sdpa" in done.stdout


@pytest.mark.slow
@needs_minilm
def test_the_walkthrough_runs(tmp_path: Path) -> None:
    assert shutil.which("bash")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", ROOT / "examples" / "walkthrough.sh"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "L1H8 0.9 uniform 0.12" in done.stdout


@needs_minilm
@pytest.mark.parametrize("words", ["analysis.lines(", "attnviz.compare("])
def test_the_python_of_views_and_comparisons_runs(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"attnviz": importlib.import_module("attnviz")}
    exec(compile(python_with(words), "README.md", "exec"), names)
    if "page" in names:
        assert [len(ax.images) for ax in names["page"].axes] == [1, 1]  # type: ignore[attr-defined]
        assert Path("dark.pdf").is_file()
    else:
        assert names["result"].heads[0].distance > 0.1  # type: ignore[attr-defined]
        assert Path("what-changed/compare.pdf").is_file()


def rows_of_views() -> list[list[str]]:
    """Of each view its name, and the calls for plan, drawing and colour bar."""
    table = section("Pictures for a paper").split("| view | plan |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]
    return [[cell.strip("`") if "," not in row[0] or at else cell for at, cell in enumerate(row)] for row in rows]


@pytest.fixture(scope="module")
def names_of_views() -> dict[str, Any]:
    """What the calls of the README are made with."""
    import attnviz

    analysis = attnviz.analyze("The cat that I saw ran away", syntax=False, profile=False, device="cpu")
    paired = attnviz.analyze("Where is the cat?", analysis.checkpoint, pair="It ran away.", syntax=False)
    return {"figures": importlib.import_module("attnviz.figures"), "analysis": analysis, "paired": paired}


def test_every_view_has_its_calls_in_the_readme() -> None:
    listed = {row[0].partition(",")[0].strip("`") for row in rows_of_views()}
    assert listed == set(FIGURES)


@needs_minilm
@pytest.mark.parametrize("look", [Look(), Look("dark", "per-head", "6in")], ids=["plain", "dark"])
@pytest.mark.parametrize("row", rows_of_views(), ids=lambda row: row[0])
def test_every_view_is_drawn_on_the_callers_axes_as_the_readme_says(
    row: list[str], look: Look, names_of_views: dict[str, Any]
) -> None:
    _, plan_call, draw_call, *bar_call = row
    page = Figure(figsize=(9, 6))
    ax, other = page.subplots(1, 2)
    before = dict(matplotlib.rcParams), pyplot.get_fignums(), matplotlib.get_backend(), place_and_artists(other)
    names = {**names_of_views, "ax": ax, "look": look, "ScalarMappable": ScalarMappable}
    names["plan"] = eval(plan_call, names)
    names["drawn"] = eval(draw_call, names)
    assert names["drawn"].axes is ax
    assert page.axes == [ax, other]
    if bar_call and bar_call[0]:
        page.colorbar(eval(bar_call[0], names), ax=ax)
        assert len(page.axes) == 3
    else:
        assert ax.findobj(Legend)
    page.savefig(io.BytesIO(), format="svg")
    after = dict(matplotlib.rcParams), pyplot.get_fignums(), matplotlib.get_backend(), place_and_artists(other)
    assert after == before


def place_and_artists(ax: Axes) -> tuple[Any, int]:
    return ax.get_position().bounds, len(ax.get_children())
