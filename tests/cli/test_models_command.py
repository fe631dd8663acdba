"""``attnviz models`` as its users meet it, and the same from Python: lists, tables, files, messages, exit codes."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from transformers.models.bert.modeling_bert import BertIntermediate, BertSelfAttention
from typer.testing import CliRunner, Result

import attnviz
from attnviz.cli.program import app
from attnviz.commands.models import Configuration, models_report, paper_configuration, paper_configurations
from attnviz.errors import UsageError
from attnviz.present.tables import plain_text
from tests.conftest import needs_minilm
from tests.support.hub import FIRST, put
from tests.support.tolerances import SUMS_32

PAPERS = [known.name for known in paper_configurations()]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and an empty folder to work in."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments])


def listed(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    entries: list[dict[str, Any]] = json.loads(result.stdout)["models"]
    return entries


def printed(found: list[Configuration], width: int) -> str:
    return plain_text(models_report(found), width)


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.split()


@needs_minilm
def test_all_that_are_known_are_listed_the_cached_between_built_in_ones_and_papers(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where smollm2 may have been unpacked
    put(cache, "org/tiny", {"config.json": b'{"model_type": "gpt2", "n_layer": 2}'})
    put(cache, "org/broken", {"config.json": b"[]"})
    found = {model["name"]: model for model in listed()}
    assert list(found) == ["minilm", "tiny-gpt2", "org/broken", "org/tiny", *PAPERS]
    tiny, broken = found["org/tiny"], found["org/broken"]
    assert (tiny["n_layers"], tiny["kind"], tiny["source"], tiny["reproduced"]) == (2, "hub", FIRST, True)
    assert (broken["d_model"], broken["reproduced"]) == (None, False)


def test_names_give_only_what_they_name_in_their_order_and_once(cache, bert_folder):
    names = [model["name"] for model in listed("GPT3-175B", str(bert_folder), "tiny-gpt2", "bert-large", "tiny-gpt2")]
    assert names == ["gpt3-175b", str(bert_folder), "tiny-gpt2", "bert-large"]
    put(cache, "gpt2-xl")
    assert [model["kind"] for model in listed("gpt2-xl", "gpt2-large")] == ["paper", "hub", "paper"]


def test_files_are_written_on_request_only_and_say_what_is_printed():
    quiet = run("bert-base", "-q")
    assert (quiet.exit_code, quiet.output, list(Path().iterdir())) == (0, "", [])
    result = run("bert-base", "gpt3-13b", "-o", "out", "--json")
    content = json.loads(Path("out/models.json").read_text(encoding="utf-8"))
    assert content == json.loads(result.stdout)
    assert list(content["papers"]) == ["Devlin et al. 2019", "Brown et al. 2020"]
    first, second = csv.DictReader(Path("out/models.csv").read_text(encoding="utf-8").splitlines())
    assert (first["name"], first["parameters"], first["reproduced"]) == ("bert-base", "109482240", "True")
    assert (second["parameters"], second["stated_parameters"]) == ("", "13000000000")


def test_the_table_has_sizes_and_parameters_rounded_within_80_columns():
    text = run("gpt2-xl", "gpt3-175b").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert row(text, "gpt2-xl") == "gpt2-xl 48 *25 1600 *64 1024 1542M Radford 2019 4".split()
    assert row(text, "gpt3-175b") == "gpt3-175b 96 96 12288 128 2048 175B Brown 2020 –".split()
    for count, rounded in ((999, "999"), (65_000, "65K"), (1_557_611_200, "1557.6M"), (1_300_000_000, "1.3B")):
        assert rounded in row(printed([Configuration("m", "folder", parameters=count)], 80), "m")


def test_what_is_not_known_is_a_dash_and_notes_are_no_markup():
    odd = Configuration("odd", "folder", architecture="llama", reason="save it again.", notes=("[bold]note.",))
    text = printed([odd], 80)
    assert row(text, "odd") == "odd – – – – – – folder –".split()
    assert [text.count(part) for part in ("save it again.", "[bold]note.")] == [1, 1]


# --- from Python


def test_from_python_a_list_of_configurations(bert_folder):
    (configuration,) = attnviz.model_configurations(str(bert_folder))  # one name is one name
    assert isinstance(configuration, attnviz.Configuration)
    told: list[tuple[int, int]] = []
    both = attnviz.model_configurations([bert_folder, "gpt2-xl"], lambda *step: told.append(step))
    assert both == [configuration, paper_configuration("gpt2-xl")]
    assert told == [(0, 2), (1, 2)]
    assert attnviz.model_configurations(None) == attnviz.model_configurations()
    for names in (3, b"minilm", [None], [3]):
        with pytest.raises(UsageError):
            attnviz.model_configurations(names)


def test_the_folder_of_an_adapter_has_the_sizes_of_its_base_model(bert_folder: Path):
    Path("mine").mkdir()
    for base, layers in ((str(bert_folder), 3), ("./mine", None), ("./nowhere", None)):
        Path("mine/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        result = run("./mine", "--json")
        assert result.exit_code == (layers is None)
        if layers:
            (model,) = json.loads(result.stdout)["models"]
            assert (model["name"], model["n_layers"], model["reproduced"]) == (f"{base} + ./mine", layers, True)


# --- verified


def verified(*names: Any, code: int = 0) -> list[dict[str, Any]]:
    ran = run(*map(str, names), "--verify", "--json")
    assert ran.exit_code == code, ran.output
    models: list[dict[str, Any]] = json.loads(ran.stdout)["models"]
    return models


def test_verify_proves_models_and_writes_what_it_found(bert_folder: Path):
    models = verified(bert_folder, "tiny-gpt2", "-o", "proof")
    assert json.loads(Path("proof/models-verify.json").read_text())["models"] == models
    assert len(Path("proof/models-verify.csv").read_text().splitlines()) == 3
    for model in models:
        assert (model["level"], model["reason"], len(model["texts"]), len(model["tokens"])) == (4, None, 4, 4)
        assert max(model["tokens"]) > min(model["tokens"]), "nothing is padded"
        worst = max(layer["pattern_error"] for layer in model["verification"]["layers"])
        assert model["errors"]["pattern_error"] == worst
        checks = attnviz.explain(model["texts"][1], model["model"]["name"], device="cpu").stages.checks.values()
        assert max(check.error for check in checks) <= model["errors"]["layer_error"] < SUMS_32


def test_verify_fails_where_heads_or_the_rest_of_a_layer_differ_or_nothing_is_there(bert_folder: Path, monkeypatch):
    forward = BertIntermediate.forward
    with monkeypatch.context() as patch:  # which no pattern and no output of a head shows
        patch.setattr(BertIntermediate, "forward", lambda self, states: 1.001 * forward(self, states))
        (half,) = verified(bert_folder, code=1)
    assert (half["level"], half["errors"]["layer_error"]) == (4, None)
    assert "the rest of the layers" in half["reason"]
    scaling = property(lambda self: 0.1, lambda self, value: None)
    monkeypatch.setattr(BertSelfAttention, "scaling", scaling, raising=False)
    wrong, missing = verified(bert_folder, "nonsuch", code=1)
    assert (wrong["level"], missing["level"]) == (None, None)
    assert [wrong["model"][name] for name in ("architecture", "class", "attention")] == ["bert", "BertModel", "sdpa"]
    assert "'nonsuch'" in missing["reason"]
    Path("no-weights").mkdir()
    config = {"model_type": "reformer", "architectures": ["ReformerModel"]}
    Path("no-weights/config.json").write_text(json.dumps(config))
    (unknown,) = verified("./no-weights", code=1)
    assert unknown["level"] is None
    assert run("--verify").exit_code == 2
