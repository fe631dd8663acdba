"""The oldest versions that pyproject.toml allows, in an environment of their own. Slow: it installs for minutes."""

import json
import re
import shlex
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.project.test_packaging import run
from tests.support.families import model_of
from tests.support.models import save_checkpoint

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("adapters", "datasets", "demo", "large", "translation")
KINDS = ("bert", "roberta", "gpt2", "llama", "gemma2", "t5", "marian")
NAMES = ROOT / "tests" / "support" / "transformers_names.py"
README = (ROOT / "README.md").read_text("utf-8")
FIRST_COMMAND = re.search(r"<!-- command: demo -->\n```sh\n.* && \.venv/bin/(attnviz .*)\n```", README)


def oldest_versions() -> list[str]:
    """``name==version`` of every ``name>=version``; each requirement has a lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra])]
    for extra in extras["demo"]:  # which names other extras of attnviz
        asked += [each for name in Requirement(extra).extras for each in extras[name]]
    found = []
    for requirement in map(Requirement, asked):
        if requirement.name != "attnviz":
            (lowest,) = (each.version for each in requirement.specifier if each.operator == ">=")
            found.append(f"{requirement.name}=={lowest}")
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the oldest versions and attnviz."""
    folder = tmp_path_factory.mktemp("oldest")
    venv.create(folder / "venv", with_pip=True)
    (folder / "oldest.txt").write_text("\n".join(oldest_versions()), "utf-8")
    asked = f"{ROOT}[{','.join(EXTRAS)}]"
    run(folder / "venv/bin/pip", "install", "-q", "-c", folder / "oldest.txt", asked, cwd=folder)
    return folder / "venv" / "bin"


def test_the_first_command_of_the_readme_draws_every_head(programs, tmp_path):
    assert FIRST_COMMAND is not None
    program, *arguments = shlex.split(FIRST_COMMAND[1])
    assert "Checked: all 72 heads" in run(programs / program, *arguments, cwd=tmp_path)
    assert len([*tmp_path.rglob("heads/*.png")]) == 72


def test_the_oldest_transformers_has_what_is_used_beyond_its_documented_surface(programs, tmp_path):
    run(programs / "python", NAMES, cwd=tmp_path)


def test_the_newest_transformers_has_it_too(tmp_path):
    """Beside the torch of the tests; what is missing is printed by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (asked,) = (each for each in project["dependencies"] if Requirement(each).name == "transformers")
    newest = tmp_path / "newest"
    run(sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", newest, asked, cwd=tmp_path)
    script = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
    run(sys.executable, "-c", script, newest, NAMES, cwd=tmp_path)


@pytest.mark.parametrize("command", [[], ["heads"], ["profile"], ["models"]])
def test_help_is_printed(programs, tmp_path, command):
    assert run(programs / "attnviz", *command, "--help", cwd=tmp_path).startswith("Usage: attnviz")


def test_a_family_of_each_kind_verifies(programs, tmp_path):
    for kind in KINDS:
        save_checkpoint(*model_of(kind), tmp_path / kind)
    printed = run(programs / "attnviz", "models", *(f"./{kind}" for kind in KINDS), "--verify", "--json", cwd=tmp_path)
    assert [model["level"] for model in json.loads(printed)["models"]] == [4] * len(KINDS)


def test_an_adapter_and_a_table_of_parquet_are_read(programs, tmp_path):
    save_checkpoint(*model_of("bert"), tmp_path / "bert")
    script = """
import pyarrow.parquet
from peft import LoraConfig, get_peft_model
from transformers import BertModel
pyarrow.parquet.write_table(pyarrow.table({"text": ["the cat ran", "the dog saw a house"]}), "texts.parquet")
config = LoraConfig(target_modules=["query"])
get_peft_model(BertModel.from_pretrained("bert"), config).save_pretrained("mine")
"""
    run(programs / "python", "-c", script, cwd=tmp_path)
    command = ["heads", "texts.parquet", "--each-line", "-m", "./bert", "--adapter", "mine", "--json"]
    assert len(json.loads(run(programs / "attnviz", *command, cwd=tmp_path))["lines"]) == 2
