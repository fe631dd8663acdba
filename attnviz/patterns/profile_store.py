"""Profiles on disk, kept by the hash of the weights, for ``attnviz heads`` to find.

A profile lies in the user's data folder (of the platform, through platformdirs) or ships with attnviz. The name of its
file begins with the model's shape, so that no weights are hashed for a model of which there is no profile. Its parts
may be of several runs (:mod:`attnviz.patterns.profile_parts`).
"""

import importlib.util
import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any, TypeVar

from attnviz.errors import OutputError, UsageError
from attnviz.model.head_ids import HeadId
from attnviz.model.sources import Source, weights_sha256
from attnviz.model.wording import counted
from attnviz.patterns.guesses import error_reduction
from attnviz.patterns.profile_parts import PARTS, SYNTACTIC, Merged, merged
from attnviz.patterns.registry import told_after

_SHIPPED = Path(__file__).parents[1] / "data" / "profiles"

T = TypeVar("T")


@dataclass(frozen=True)
class StoredCorpus:
    """A corpus that a stored profile was measured on: the name of its file, and how many of its texts."""

    name: str
    sentences: int


@dataclass(frozen=True)
class StoredRole:
    """One role of one head, as a stored profile has it.

    Attributes:
        role: ``previous-token``, ``syntactic:nsubj``, ``coreference``, …
        score, baseline: 0-1; the baseline is uniform attention's, or the trivial guess's.
        n: content positions, instances or sequences behind the score.
        interval: of the score, corrected for the number of heads.
        direction: of a relation or of coreference, who attends to whom; None otherwise.
    """

    role: str
    score: float
    baseline: float
    n: int
    interval: tuple[float, float]
    passed: bool
    direction: str | None = None

    @property
    def gain(self) -> float | None:
        """Error reduction: of what the baseline misses, the share that the head does not."""
        return error_reduction(self.score, self.baseline)

    @property
    def relation(self) -> str | None:
        """The relation of a syntactic role, ``nsubj``; None for any other."""
        return self.role.removeprefix(SYNTACTIC) if self.role.startswith(SYNTACTIC) else None


@dataclass(frozen=True)
class HeadProfile:
    """What a stored profile says of one head: the roles that pass, of the largest error reduction first.

    After them come local, long-range and broad, which hold of many heads that have a role of their own.
    """

    roles: tuple[StoredRole, ...]

    @property
    def role(self) -> StoredRole | None:
        """What the head does over the corpus: the first of its roles; None where none passes."""
        return self.roles[0] if self.roles else None


@dataclass(frozen=True)
class StoredProfile:
    """A profile, as read from disk: ``shipped`` with attnviz, or the user's own, made by this ``version`` of attnviz.

    It has no corpora where it was measured on random tokens only; ``roles`` are by head, of a shipped profile only
    those that passed.
    """

    path: Path
    shipped: bool
    corpora: tuple[StoredCorpus, ...]
    seed: int
    version: str
    roles: dict[HeadId, tuple[StoredRole, ...]]

    @property
    def sentences(self) -> int:
        """Texts of all corpora together."""
        return sum(corpus.sentences for corpus in self.corpora)

    @property
    def measured_on(self) -> str:
        """The corpora with their sizes, for people."""
        named = [f"{corpus.name}, {counted(corpus.sentences, 'text')}" for corpus in self.corpora]
        return "; ".join(named) or "random tokens, repeated"

    @property
    def origin(self) -> dict[str, Any]:
        """Where it comes from, for a JSON document; without folders, so that it is the same on any machine."""
        return {
            "source": "shipped" if self.shipped else "yours",
            "file": self.path.name,
            "attnviz": self.version,
            "seed": self.seed,
            "sentences": self.sentences,
            "corpora": [asdict(corpus) for corpus in self.corpora],
        }

    def of(self, head: HeadId) -> HeadProfile:
        """What it says of one head."""
        passed = [role for role in self.roles.get(head, ()) if role.passed]
        return HeadProfile(tuple(sorted(passed, key=lambda role: (told_after(role.role), -(role.gain or 0.0)))))


def model_shape(architecture: str, n_layers: int, n_heads: int, d_model: int) -> str:
    """What the name of a profile's file begins with: ``bert-6x12x384``."""
    return f"{architecture}-{n_layers}x{n_heads}x{d_model}"


def profile_file_name(document: dict[str, Any]) -> str:
    """The name of the file for a document of profile.json."""
    return f"{_shape_of(document)}-{document['model']['weights_sha256']}.json"


def _shape_of(document: dict[str, Any]) -> str:
    return model_shape(*(document["model"][key] for key in ("architecture", "n_layers", "n_heads", "d_model")))


def store_profile(run: dict[str, Any], date: str, *, smaller: bool = False) -> tuple[Path, Merged]:
    """Keep what a run has measured in the user's data folder, with the other parts of the profile that is there.

    ``run`` is the document of profile.json; ``smaller``: whether parts replace earlier ones of more texts, too.

    Returns:
        the file, whole, and what became of each part; where nothing is new, nothing is written.

    Raises:
        OutputError: platformdirs is not installed, or the folder cannot be written to; the older one stays.
    """
    folder = _user_folder()
    if folder is None:
        raise OutputError(
            "the profile was not stored, and attnviz heads will not show it, because the package platformdirs is not "
            "installed; type: pip install 'attnviz[profile]'"
        )
    earlier = _search(_shape_of(run), run["model"]["weights_sha256"], lambda _: None)
    after = merged(run, None if earlier is None else earlier[1], date, smaller=smaller)
    path = folder / profile_file_name(run)
    if after.new or after.replaced:
        _write(path, json.dumps(after.document, separators=(",", ":"), allow_nan=False) + "\n")
    return path, after


def _write(path: Path, content: str) -> None:
    """Write a file whole or not at all; OutputError where the folder cannot be written to."""
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".attnviz-", dir=folder)
        staged = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"the profile was not stored, and attnviz heads will not show it: cannot write to {folder}: "
            f"{error.strerror or error}; make room or mend its permissions, and profile again."
        ) from error


def find_profile(source: Source, shape: str, warn: Callable[[str], None]) -> StoredProfile | None:
    """The stored profile of these very weights: the user's own, else the one that ships with attnviz.

    The weights are hashed only where a profile of the ``shape``, from :func:`model_shape`, is there. ``warn`` is told
    of a file that cannot be used; the search goes on without it.
    """
    if not any(any(folder.glob(f"{shape}-*.json")) for folder in _folders()):
        return None
    found = _search(shape, weights_sha256(source), warn)
    return None if found is None else found[0]


def stored_document(source: Source, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The file of the stored profile of these very weights, whatever the model's shape, and its document."""
    ending = f"-{weights_sha256(source)}.json"
    names = sorted({path.name for folder in _folders() for path in folder.glob(f"*{ending}")})
    found = (_search(name.removesuffix(ending), ending[1:-5], warn) for name in names)
    return next(((profile.path, document) for profile, document in filter(None, found)), None)


def _folders() -> list[Path]:
    return [folder for folder in (_user_folder(), _SHIPPED) if folder is not None]


def _search(shape: str, weights: str, warn: Callable[[str], None]) -> tuple[StoredProfile, dict[str, Any]] | None:
    """A model's profile and its document."""
    for folder in _folders():
        path, shipped = folder / f"{shape}-{weights}.json", folder == _SHIPPED
        try:
            document = _read(path)
            return _profile(path, shipped, document), document
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            mend = "reinstall attnviz" if shipped else "delete it, or make it again with attnviz profile"
            reason = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
            warn(f"the stored profile {path} was left out: expected a profile.json of these weights, {reason}; {mend}.")
    return None


def _user_folder() -> Path | None:
    """Where a user's own profiles lie; None without platformdirs."""
    if importlib.util.find_spec("platformdirs") is None:
        return None
    from platformdirs import user_data_path

    return user_data_path("attnviz", appauthor=False) / "profiles"


def _read(path: Path) -> dict[str, Any]:
    """The document of a file; OSError where it cannot be read, ValueError where it is no JSON."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise ValueError("found something that is no file")
    return _entry(json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant), "the document")


def _profile(path: Path, shipped: bool, document: dict[str, Any]) -> StoredProfile:
    """A stored profile; ValueError where it is damaged or of another model than its file's name says."""
    model = _typed(document, "model", dict)
    strings = {key: _typed(model, key, str) for key in ("architecture", "weights_sha256")}
    sizes = {key: _typed(model, key, int) for key in ("n_layers", "n_heads", "d_model")}
    if path.name != profile_file_name({"model": {**strings, **sizes}}):
        raise ValueError("found one of another model")
    _check_parts(document)
    roles: dict[HeadId, tuple[StoredRole, ...]] = {}
    for entry in _typed(document, "roles", list):
        head, role = _role(_entry(entry, "a role"), sizes)
        roles[head] = (*roles.get(head, ()), role)
    return StoredProfile(
        path, shipped, _corpora(document), _typed(document, "seed", int), _typed(document, "attnviz", str), roles
    )


def _corpora(content: dict[str, Any]) -> tuple[StoredCorpus, ...]:
    corpora = [_entry(entry, "a corpus") for entry in _typed(content, "corpora", list)]
    names = [PurePath(_typed(corpus, "path", str)).name for corpus in corpora]
    return tuple(map(StoredCorpus, names, [_typed(corpus, "sentences", int) for corpus in corpora]))


def _check_parts(document: dict[str, Any]) -> None:
    """ValueError where a part, or what it was measured on, cannot be read."""
    parts = _typed(document, "parts", dict) if "parts" in document else {}
    for name in PARTS:
        if name in parts or document.get(name) is not None:
            _typed(document, name, dict)
    for name in filter(parts.__contains__, PARTS):
        part = _typed(parts, name, dict)
        _corpora(part)
        for key, kind in (("n", int), ("date", str)):
            if part.get(key) is not None:
                _typed(part, key, kind)


def _role(content: dict[str, Any], sizes: dict[str, int]) -> tuple[HeadId, StoredRole]:
    """A role and the head that it is of."""
    name = _typed(content, "id", str)
    try:
        head = HeadId.parse(name)
    except UsageError as error:
        raise ValueError(f"found {name!r} for a head") from error
    if head.layer >= sizes["n_layers"] or head.head >= sizes["n_heads"]:
        raise ValueError(f"found the head {head}, which the model lacks")
    interval = _typed(content, "interval", list)
    if len(interval) != 2:
        raise ValueError(f"found an interval of {len(interval)} numbers")
    low, high = (_share({"interval": bound}, "interval") for bound in interval)
    direction = None if content.get("direction") is None else _typed(content, "direction", str)
    score, baseline = (_share(content, key) for key in ("score", "baseline"))
    n, passed = _typed(content, "n", int), _typed(content, "passed", bool)
    return head, StoredRole(_typed(content, "role", str), score, baseline, n, (low, high), passed, direction)


def _entry(value: Any, name: str) -> dict[str, Any]:
    return _typed({name: value}, name, dict)


def _typed(content: dict[str, Any], key: str, kind: type[T]) -> T:
    """The value of a key; whole numbers count as numbers, truth values and infinite numbers do not."""
    value: Any = content.get(key)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"found {'nothing' if value is None else type(value).__name__} for {key}")
    return value


def _share(content: dict[str, Any], key: str) -> float:
    """A score, a baseline or a bound of an interval; all are cosines, or shares."""
    value = _typed(content, key, float)
    if not -1.0 <= value <= 1.0:
        raise ValueError(f"found {value:g} for {key}, which is a share or a cosine")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"found {name}, which is no number of JSON")
