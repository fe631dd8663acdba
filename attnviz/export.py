"""Results on disk: the JSON document, CSV, attention weights; every file whole or not at all."""

import csv
import io
import json
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save

from attnviz.errors import OutputError
from attnviz.findings import Findings, HeadFindings
from attnviz.patterns import Pattern
from attnviz.statistics import SHARES

__all__ = ["OutputFolder", "attention_bytes", "csv_text", "document", "json_text"]

_SCALARS = (
    "id", "layer", "head", "entropy", "entropy_uniform", "distance", "confidence", "sink",
    *SHARES, "label",
)  # fmt: skip
_OURS = re.compile(r"(overview|heads/L\d+H\d+)\.(png|svg|pdf)|heads\.csv|attention\.safetensors")
_MANIFEST = "heads.json"


def document(findings: Findings, heads: Sequence[HeadFindings], figures: Sequence[str], version: str) -> dict[str, Any]:
    """The document of heads.json; what cannot be measured is None.

    Args:
        findings: of one text.
        heads: those to list.
        figures: paths of the figures, relative to the folder.
        version: of attnviz.
    """
    model, tokens = findings.checkpoint, findings.tokens
    return {
        "attnviz": version,
        "model": {
            "name": model.name,
            "architecture": model.architecture.name,
            "revision": model.revision,
            "n_layers": model.n_layers,
            "n_heads": model.n_heads,
            "d_model": model.d_model,
            "d_head": model.d_head,
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
        },
        "text": findings.text,
        "pair": findings.pair,
        "options": {
            "words": findings.options.words,
            "local_window": findings.options.local_window,
            "long_range_from": findings.options.long_range_from,
            "tokens_cut_off": tokens.truncated,
            "parser": findings.parse.parser if findings.parse else None,
        },
        "tokens": [
            {"id": token_id, "text": text, "special": special, "word": word}
            for token_id, text, special, word in zip(
                tokens.ids, tokens.labels, tokens.special, tokens.words, strict=True
            )
        ],
        "verification": _verification(findings),
        "heads": [_head(head, findings) for head in heads],
        "figures": list(figures),
        "words": list(findings.units.labels) if findings.options.words else None,
    }


def json_text(content: dict[str, Any]) -> str:
    """The document as JSON; ASCII only, so that no text can steer a terminal."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def csv_text(content: dict[str, Any]) -> str:
    """The scalar columns of the document's heads, one row a head; empty where not measurable."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _SCALARS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(content["heads"])
    return buffer.getvalue()


def attention_bytes(findings: Findings) -> bytes:
    """All patterns in safetensors: one tensor [n_heads, n, n] a layer, named ``layer.0`` and so on."""
    tensors = {
        f"layer.{layer}": findings.layer_patterns(layer).contiguous() for layer in range(findings.checkpoint.n_layers)
    }
    labels = json.dumps(list(findings.units.labels))
    content: bytes = save(tensors, {"unit": findings.units.name, "labels": labels, "model": findings.checkpoint.name})
    return content


class OutputFolder:
    """A folder that receives all of a run's files at once, or none of them.

    Files are first written to a hidden folder inside, and moved when all are there; an error, a full
    disk or Ctrl-C leaves what was there before. The folder always tells of one analysis: a rerun on
    the same text, model and options adds to the files of the run before (which heads.json lists) or
    replaces them; any other run removes them. A file that attnviz did not write is neither replaced
    nor deleted.

    Use as a context manager::

        with OutputFolder(path) as folder:
            folder.write("overview.png", data)
            folder.commit(document)
    """

    def __init__(self, path: Path) -> None:
        """Nothing is touched before the context is entered."""
        self.path = path
        self._staging: Path | None = None
        self._created: list[Path] = []
        self._staged: list[str] = []
        self.committed = False
        self.removed = 0

    @property
    def count(self) -> int:
        """How many files this run has written."""
        return len(self._staged)

    def __enter__(self) -> "OutputFolder":
        """Make the folder and check that it can be written to.

        Raises:
            OutputError: it is a file, cannot be written to, or holds foreign files of our names.
        """
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"cannot write to {self.path}: it is a file; expected a folder, or a new name, for -o.")
        with self._as_output_error("make the folder", self.path):
            self._created = _make_folders(self.path)
            try:
                self._refuse_foreign(name for name in _names_below(self.path) if _OURS.fullmatch(name))
                self._staging = Path(tempfile.mkdtemp(prefix=".attnviz-", dir=self.path))
            except BaseException:
                self._remove_created()
                raise
        return self

    def write(self, name: str, content: bytes | str) -> None:
        """Write one file, by its path relative to the folder; it appears there on :meth:`commit`.

        Raises:
            OutputError: the disk is full, or the like.
        """
        assert self._staging is not None
        target = self._staging / name
        with self._as_output_error("write", self.path / name):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        self._staged.append(name)

    def commit(self, content: dict[str, Any]) -> dict[str, Any]:
        """Write heads.csv and heads.json, then move every file to its place.

        Args:
            content: from :func:`document`.

        Returns:
            what heads.json holds: the content, and a list of attnviz's files in the folder.

        Raises:
            OutputError: a file that attnviz did not write has the name of one of these.
        """
        self.write("heads.csv", csv_text(content))
        earlier = self._earlier()
        kept = earlier if self._same_analysis(content) else set()
        complete = {**content, "files": sorted({*self._staged, *kept, _MANIFEST})}
        self.write(_MANIFEST, json_text(complete))
        assert self._staging is not None
        self._refuse_foreign(self._staged)
        with self._as_output_error("write to", self.path):
            for name in self._staged:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        with _uninterrupted(), self._as_output_error("write to", self.path, unchanged=False):
            for name in sorted(self._staged, key=lambda name: name != _MANIFEST):
                (self._staging / name).replace(self.path / name)
            stale = earlier - kept - set(self._staged)
            for name in stale:
                (self.path / name).unlink(missing_ok=True)
            self.removed = len(stale)
            if stale and not any((self.path / "heads").glob("*")):
                (self.path / "heads").rmdir()
            self.committed = True
        self._created.clear()
        return complete

    def __exit__(self, *_: object) -> None:
        """Remove the hidden folder, and folders made for nothing."""
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)
        self._remove_created()

    def _manifest(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / _MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) and "attnviz" in content else {}

    def _earlier(self) -> set[str]:
        """What earlier runs wrote here, by their own heads.json; only names that we give are believed."""
        manifest = self._manifest()
        files = manifest.get("files", [])
        ours = {str(name) for name in files if _OURS.fullmatch(str(name))} if isinstance(files, list) else set()
        return ours | ({_MANIFEST} if manifest else set())

    def _same_analysis(self, content: dict[str, Any]) -> bool:
        manifest = self._manifest()
        return all(manifest.get(key) == content[key] for key in ("attnviz", "model", "text", "pair", "options"))

    def _refuse_foreign(self, names: Iterable[str]) -> None:
        earlier = self._earlier()
        foreign = sorted(name for name in {*names, _MANIFEST} - earlier if (self.path / name).exists())
        heads = self.path / "heads"
        if heads.is_symlink() or (heads.exists() and not heads.is_dir()):
            foreign.append("heads")
        if foreign:
            raise OutputError(
                f"{self.path} holds {', '.join(foreign[:3])}{', …' if len(foreign) > 3 else ''}, which attnviz did not "
                "write (no heads.json of attnviz lists it) and will not replace; choose another folder with -o."
            )

    def _remove_created(self) -> None:
        for folder in self._created:
            try:
                folder.rmdir()
            except OSError:
                return

    @contextmanager
    def _as_output_error(self, action: str, path: Path, *, unchanged: bool = True) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"cannot {action} {path}: {error.strerror or error}; "
                f"{'nothing was changed' if unchanged else 'its files may be of two runs: run again'}. "
                "Choose another folder with -o, or make room."
            ) from error


def _verification(findings: Findings) -> dict[str, Any]:
    found = findings.verification
    return {
        "passed": True,
        "heads_compared": found.heads_compared,
        "pattern_tolerance": found.tolerance.pattern,
        "output_tolerance": found.tolerance.output,
        "layers": [
            {
                "layer": check.layer,
                "pattern_error": check.pattern_error,
                "output_error": check.output_error,
                "output_scale": check.output_scale,
            }
            for check in found.layers
        ],
    }


def _head(head: HeadFindings, findings: Findings) -> dict[str, Any]:
    statistics = dict(head.statistics)
    return {
        "id": str(head.id),
        "layer": head.id.layer,
        "head": head.id.head,
        "entropy": statistics["entropy"],
        "entropy_uniform": findings.frame.entropy_uniform,
        **{name: statistics[name] for name in ("distance", "confidence", "sink", *SHARES)},
        "baseline": findings.frame.baselines,
        "patterns": [_pattern(pattern) for pattern in head.patterns],
        "label": head.label,
    }


def _pattern(pattern: Pattern) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": pattern.name,
        "score": pattern.score,
        "baseline": pattern.baseline,
        "n": pattern.n,
        "passed": pattern.passed,
        "kind": pattern.kind,
        "enough": pattern.enough,
        "threshold": pattern.threshold,
    }
    if pattern.kind == "syntactic":
        content |= {"direction": pattern.direction, "offset": pattern.offset}
    return content


def _names_below(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for place in (folder, folder / "heads") for path in place.glob("*")]


def _make_folders(path: Path) -> list[Path]:
    """Make a folder and its parents; those that were made, the innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for the moment in which files are moved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
