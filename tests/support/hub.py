"""A hub that is not asked over a network, and its cache on disk, laid out as the hub's client does."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

FIRST, SECOND = "a" * 40, "b" * 40
"""Commits."""

CONFIG = {"config.json": b'{"model_type": "bert"}'}
"""The files of a model of which the config alone is there."""

ANSWER = SimpleNamespace(headers={}, request=None, status_code=404)


def files_of(folder: Path, leave_out: str = "") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != leave_out}


def put(
    cache: Path, name: str, files: Mapping[str, bytes] = CONFIG, *, commit: str = FIRST, ref: str | None = "main"
) -> Path:
    """Lay files of a model into the cache: blobs, and links to them in a snapshot, which is returned."""
    repository = cache / ("models--" + name.replace("/", "--"))
    snapshot = repository / "snapshots" / commit
    for place in (repository / "blobs", repository / "refs", snapshot):
        place.mkdir(parents=True, exist_ok=True)
    if ref:
        (repository / "refs" / ref).write_text(commit)
    for file, content in files.items():
        blob = repository / "blobs" / f"{commit[:8]}{file}"
        blob.write_bytes(content)
        if not (snapshot / file).exists():
            (snapshot / file).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


class Hub:
    """An empty cache, and a hub that fails the test where it is asked, until it is told what to answer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.asked, self.downloaded = folder, list[tuple[Any, ...]](), dict[str, None]()
        self._patch = monkeypatch
        folder.mkdir()
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
        self.raises(AssertionError("the hub was asked"))

    def online(self) -> None:
        """As if HF_HUB_OFFLINE were not set."""
        self._patch.setattr(constants, "HF_HUB_OFFLINE", False)

    def raises(self, error: Exception) -> None:
        def model_info(_: Any, *of: Any, **options: Any) -> None:
            raise error

        self._patch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        self._patch.setattr(huggingface_hub.HfApi, "repo_info", model_info)

    def has(self, files: Mapping[str, bytes], others: Iterable[str] = (), broken: Exception | None = None) -> None:
        """Answer with the names of these files and others, and put those that are asked for into the cache."""
        self.online()
        original = huggingface_hub.snapshot_download

        def model_info(_: Any, name: str, revision: Any = None, timeout: Any = None, **options: Any) -> Any:
            self.asked.append((name, revision, timeout))
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in [*files, *others]], sha=FIRST)

        def download(name: str, revision: Any = None, local_files_only: bool = False, **options: Any) -> str:
            if local_files_only:
                return original(name, revision=revision, local_files_only=True)
            if broken:
                raise broken
            self.downloaded |= dict.fromkeys(options["allow_patterns"])
            self.timeout = options["etag_timeout"]
            chosen = {file: content for file, content in files.items() if file in options["allow_patterns"]}
            return str(put(self.cache, name, chosen, ref=revision or "main"))

        self._patch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        self._patch.setattr(huggingface_hub, "snapshot_download", download)
