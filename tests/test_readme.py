"""The README says what the program does: its commands run as written, its options and numbers are the program's."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import attnviz
from attnviz.attention.tolerances import TOLERANCES
from attnviz.cli.program import app
from attnviz.patterns.registry import PATTERNS, PatternSpec
from attnviz.patterns.verdicts import (
    BROAD_SHARE,
    ENOUGH,
    HALF_OF_THE_REST,
    LEAST_N,
    MAJORITY,
    MARGIN,
    SINK_ONLY,
    SINK_SHARE,
)
from attnviz.results.result import views_of
from tests.conftest import needs_minilm, needs_parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = list(re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S))
SHOWN = r"L\dH|Head|Pattern|previous-token|nsubj|induction|\d+ heads: |    [01]  [a-z]"
COMMANDS = [line for block in SHELL for line in block.splitlines() if line.startswith(("attnviz", "echo"))]


COMMAND_TITLES = {
    "heads": "Options of `attnviz heads`",
    "compare": "What changed: `attnviz compare`",
    "profile": "What a head does in general: `attnviz profile`",
    "explain": "Inside a layer: `attnviz explain`",
    "outputs": "What a head writes: `attnviz outputs`",
    "ablate": "Without a head: `attnviz ablate`",
    "rollout": "Through all layers: `attnviz rollout`",
    "models": "Which model: `attnviz models`",
}


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def python_with(words: str) -> str:
    (block,) = [block for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if words in block]
    return str(block)


@needs_minilm
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_run_as_written(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, said = typed(command)
    done = CliRunner().invoke(app, words, input=said)
    assert done.exit_code == 0, done.output
    kind, model = words[0], "tiny-gpt2" if "tiny-gpt2" in command else "minilm"
    folder = model if kind in ("heads", "profile") else f"{kind}-{model}"
    if kind == "models":
        assert done.stdout.count("minilm")
    else:
        assert len(list((tmp_path / "attnviz-out" / folder).glob(f"*/{kind}.json"))) == 1


@needs_minilm
def test_the_first_command_runs_in_a_shell(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = f"{SHELL[0].strip().rpartition('&& .venv/bin/')[2]} --figures none"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Verified 72 heads in 6 layers of minilm" in done.stdout


@pytest.mark.parametrize("command", [command for command in COMMAND_TITLES if command != "models"])
def test_figures_are_named_by_help_and_readme_as_by_the_program(command: str) -> None:
    names = [view.name for view in views_of(command)]
    written = section(COMMAND_TITLES[command]) + section("Pictures for a paper") * (command == "heads")
    assert [name for name in names if f"`{name}`" not in written] == []
    printed = " ".join(CliRunner().invoke(app, [command, "--help"], terminal_width=500).stdout.split())
    assert f"Any of {', '.join(names)} (with commas between)" in printed


@pytest.mark.parametrize("spec", PATTERNS, ids=lambda spec: spec.statistic)
def test_every_pattern_is_documented_with_its_source(spec: PatternSpec) -> None:
    rows = [line for line in section("How to read the numbers").splitlines() if line.startswith("|")]
    row = next(line for line in rows if f"`{spec.name}`" in line.split("|")[1])  # rows of the labels come later
    assert spec.source in row
    assert spec.target.replace("{unit}", "token").format(window="W", far="D") in row


def test_the_two_commands_install_with_the_constraints_of_ci() -> None:
    assert len(COMMANDS) >= 20
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


@pytest.mark.parametrize("command", COMMAND_TITLES)
def test_the_options_of_the_readme_are_the_options_of_the_program(command: str) -> None:
    title = COMMAND_TITLES[command]
    table = [line.split("|")[1] for line in section(title).splitlines() if line.startswith("| `")]
    listed = {option for cell in table for option in re.findall(r"--[a-z-]+", cell)}
    shown = set(re.findall(r"--[a-z-]+", CliRunner().invoke(app, [command, "--help"], terminal_width=200).stdout))
    switches = {option.replace("--no-", "--") for option in shown if option.startswith("--no-")}
    assert listed - switches == shown - {"--help"} - switches


def test_the_thresholds_of_the_readme_are_the_thresholds_of_the_program() -> None:
    text = section("How to read the numbers")
    points = f"{round(MARGIN * 100)} points above"
    assert f"| `sink` | above {SINK_SHARE} and {points} uniform |" in text
    assert f"| above {MAJORITY}, {points} uniform, sink at most {SINK_ONLY} |" in text
    assert f"{points} its baseline, n of {ENOUGH} or more, at least {LEAST_N} more right" in text
    assert f"(score − uniform) / (1 − uniform) > {HALF_OF_THE_REST}" in text
    assert f"at least {BROAD_SHARE:.2f} of uniform" in text
    assert f"fewer than {LEAST_N} content tokens" in text
    assert f"Below n = {ENOUGH} a label" in text


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
@pytest.mark.parametrize(
    ("text", "model", "shown", "lines"),
    [
        ("The cat that I saw ran away", "minilm", README.split("```text\n")[1], 12),
        ("one two three four five one two three four five", "tiny-gpt2",
         section("Your text, your model").split("```text\n")[2], 3),
    ],
)  # fmt: skip
def test_tables_of_the_readme_are_what_the_program_prints(text: str, model: str, shown: str, lines: int) -> None:
    printed = [line.rstrip() for line in attnviz.analyze(text, model, device="cpu").report(width=80).splitlines()]
    table = [line for line in shown.partition("```")[0].splitlines() if re.match(SHOWN, line)]
    assert len(table) == lines
    assert [line for line in table if line not in printed] == []


def test_the_profile_in_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("The cat ran away.\nThe dog saw the cat.\n", encoding="utf-8")
    code = python_with("profile_heads(")
    names: dict[str, object] = {}
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
    assert all(issubclass(getattr(attnviz.errors, name), attnviz.AttnvizError) for name in attnviz.errors.__all__)


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


def typed(command: str) -> tuple[list[str], str | None]:
    """The arguments of ``attnviz`` in a line of a shell, and what is piped into it."""
    first, _, after = command.partition(" | ")
    words = shlex.split(first)
    said = f"{words[-1]}\n" if words[0] in ("echo", "printf") else None
    return (shlex.split(after) if said else words)[1:], said


@needs_minilm
def test_the_walkthrough_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = (ROOT / "examples" / "walkthrough.sh").read_text(encoding="utf-8").replace("|\n  attnviz", "| attnviz")
    commands = [
        line.replace("$out", "out").removesuffix(" |")
        for line in script.splitlines()
        if " attnviz heads " in f" {line}"
    ]
    assert len(commands) == 7
    for command in commands:
        words, said = typed(command)
        done = CliRunner().invoke(app, [*words, "--figures", "none"], input=said)
        assert done.exit_code == 0, done.output
    assert len(list(Path("out").glob("*/heads.json"))) == 7


def test_each_python_block_of_the_readme_imports_attnviz() -> None:
    blocks = [each for each in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if "attnviz." in each]
    assert len(blocks) >= 9
    assert [block for block in blocks if not re.search(r"^import attnviz$", block, re.M)] == []


@needs_minilm
@pytest.mark.parametrize("words", ["analysis.draw(", "attnviz.compare("])
def test_the_python_of_views_and_comparisons_runs(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(python_with(words), "README.md", "exec"), names)
    if "page" in names:
        assert [len(ax.images) for ax in names["page"].axes[:2]] == [1, 1]  # type: ignore[attr-defined]
        assert Path("dark.pdf").is_file()
    else:
        assert names["result"].heads[0].distance > 0.1  # type: ignore[attr-defined]
        assert Path("what-changed/compare.pdf").is_file()
