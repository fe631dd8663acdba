"""Profiles on disk by the hash of the weights, which ``attnviz heads`` reads.

A profile is in the user's data folder (by platformdirs) or ships with attnviz. Its file name begins with the model's
shape, so that weights are hashed only if there is a profile of that shape. Its parts may be of several runs
(:mod:`attnviz.profiles.parts`).
"""

import importlib.util
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from attnviz.errors import OutputError, UsageError
from attnviz.locks import lock, unlock
from attnviz.measures.guesses import error_reduction
from attnviz.measures.patterns import rank_of_role
from attnviz.measures.tallies import OFFSETS
from attnviz.models.head_ids import HeadId, Stack, head_named
from attnviz.models.sources import Source, weights_sha256
from attnviz.models.wording import counted
from attnviz.profiles.examples import RoleExamples, stored_examples, text_or_none
from attnviz.profiles.parts import PARTS, SYNTACTIC, Merged, is_of_part, measured_on, merged, part_of, parts_of

_SHIPPED = Path(__file__).parents[1] / "data" / "profiles"


@dataclass(frozen=True)
class StoredCorpus:
    """A corpus of a stored profile: the name of its file, and the number of its texts that were measured."""

    name: str
    sentences: int


@dataclass(frozen=True)
class StoredRole:
    """One role of one head in a stored profile.

    Attributes:
        role: ``previous-token``, ``syntactic:nsubj``, ``coreference``, …
        score, baseline: 0-1; the baseline is that of uniform attention or of the best guess.
        n: what the score rests on, as :attr:`attnviz.judge.roles.Role.n`.
        interval: of the score, corrected for the number of heads.
        direction: of a relation or of coreference, who attends to whom; None otherwise.
        untrained: the best score of any head of an untrained copy of the model, in the same direction; None without
            this control.
        refuted: whether it cannot pass, even at the upper ends of its intervals.
    """

    role: str
    score: float
    baseline: float
    n: int
    interval: tuple[float, float]
    passed: bool
    direction: str | None = None
    untrained: float | None = None
    refuted: bool = False

    @property
    def error_reduction(self) -> float | None:
        """Share of the baseline's errors that the head does not make."""
        return error_reduction(self.score, self.baseline)

    @property
    def relation(self) -> str | None:
        """The relation of a syntactic role, ``nsubj``; None for any other."""
        return self.role.removeprefix(SYNTACTIC) if self.role.startswith(SYNTACTIC) else None


@dataclass(frozen=True)
class StoredProfile:
    """A profile read from disk, ``shipped`` or the user's own, written by ``version`` of attnviz.

    Without corpora if measured on random tokens only; ``roles`` are by head, in a shipped profile only those that
    passed. ``model`` describes the model, ``licences`` are of examples, by corpus; ``parts`` are those measured, as of
    :func:`attnviz.profiles.parts.parts_of`.
    """

    path: Path
    shipped: bool
    corpora: tuple[StoredCorpus, ...]
    seed: int
    version: str
    roles: dict[HeadId, tuple[StoredRole, ...]]
    model: dict[str, Any] = field(default_factory=dict)
    stacks: tuple[Stack, ...] = ()
    examples: tuple[RoleExamples, ...] = ()
    licences: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

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
        """Its source for a JSON document, without folders, so that it is the same on any machine."""
        return {
            "source": "shipped" if self.shipped else "yours",
            "file": self.path.name,
            "attnviz": self.version,
            "seed": self.seed,
            "sentences": self.sentences,
            "corpora": [asdict(corpus) for corpus in self.corpora],
        }

    def of(self, head: HeadId) -> tuple[StoredRole, ...]:
        """The roles that one head passes, the largest error reduction first.

        Local, long-range and broad come after specific ones, which many of these heads show, too; sink is the last,
        since it says where attention rests, not what the rest of it does.
        """
        passed = [role for role in self.roles.get(head, ()) if role.passed]
        return tuple(sorted(passed, key=role_key))


def role_key(role: StoredRole) -> tuple[float, ...]:
    """Sort key of roles, the clearest first."""
    return rank_of_role(role.role), -(role.error_reduction or 0.0)


def model_shape(architecture: str, n_layers: int, n_heads: int, d_model: int) -> str:
    """Prefix of a profile's file name: ``bert-6x12x384``."""
    return f"{architecture}-{n_layers}x{n_heads}x{d_model}"


def profile_file_name(document: dict[str, Any]) -> str:
    """The name of the file for a document of profile.json."""
    return f"{_shape_of(document)}-{document['model']['weights_sha256']}.json"


def _shape_of(document: dict[str, Any]) -> str:
    return model_shape(*(document["model"][key] for key in ("architecture", "n_layers", "n_heads", "d_model")))


def store_profile(
    run: dict[str, Any], date: str, *, smaller: bool = False, warn: Callable[[str], None] = lambda _: None
) -> tuple[Path, Merged]:
    """Store a run in the user's data folder, merged with the profile that is there.

    ``run`` is the document of profile.json; ``smaller`` lets parts replace earlier ones of more texts; ``warn`` is
    called with a message if an earlier profile is damaged, which is then replaced.

    Returns:
        the file, and the merged profile; nothing is written if nothing is new.

    Raises:
        OutputError: platformdirs is not installed, or the folder cannot be written to; the earlier file stays.
    """
    folder = _user_folder()
    if folder is None:
        raise OutputError(
            "the profile was not stored, and attnviz heads will not show it, because the package platformdirs is not "
            "installed; type: pip install 'attnviz[profile]'"
        )
    path = folder / profile_file_name(run)
    with _alone(folder):
        earlier = _search(_shape_of(run), run["model"]["weights_sha256"], warn)
        after = merged(run, None if earlier is None else earlier[1], date, smaller=smaller)
        if after.new or after.replaced:
            _write(path, json.dumps(after.document, separators=(",", ":"), allow_nan=False) + "\n")
    return path, after


def _write(path: Path, content: str) -> None:
    """Write a file atomically."""
    handle, name = tempfile.mkstemp(prefix=".attnviz-", dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make the folder, and let other runs wait while the block reads, merges and writes.

    Raises:
        OutputError: it cannot be made, or written to in the block.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = lock(folder, wait=True)
        try:
            yield
        finally:
            unlock(held)
    except OSError as error:
        raise OutputError(
            f"the profile was not stored, and attnviz heads will not show it: cannot write to {folder}: "
            f"{error.strerror or error}; make room or mend its permissions, and profile again."
        ) from error


def find_profile(source: Source, shape: str, warn: Callable[[str], None]) -> StoredProfile | None:
    """The stored profile of exactly these weights: the user's own, else the shipped one.

    Weights are hashed only if there is a profile of the ``shape`` (:func:`model_shape`). ``warn`` is called with a
    message for each file that cannot be used.
    """
    if not any(any(folder.glob(f"{shape}-*.json")) for folder in _folders()):
        return None
    stored = _search(shape, weights_sha256(source), warn)
    return None if stored is None else stored[0]


def stored_profile(source: Source, warn: Callable[[str], None]) -> StoredProfile | None:
    """The stored profile of exactly these weights, whatever the model's shape."""
    ending = f"-{weights_sha256(source)}.json"
    names = sorted({path.name for folder in _folders() for path in folder.glob(f"*{ending}")})
    stored = (_search(name.removesuffix(ending), ending[1:-5], warn) for name in names)
    return next((profile for profile, _ in filter(None, stored)), None)


def _folders() -> list[Path]:
    return [folder for folder in (_user_folder(), _SHIPPED) if folder is not None]


def _search(shape: str, weights: str, warn: Callable[[str], None]) -> tuple[StoredProfile, dict[str, Any]] | None:
    """A model's profile and its document."""
    for folder in _folders():
        path, shipped = folder / f"{shape}-{weights}.json", folder == _SHIPPED
        try:
            document = read_json(path)
            profile = _profile(path, shipped, document)
            if path.name != profile_file_name(document):
                raise ValueError("found one of another model than its name says")
            return profile, document
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            mend = "reinstall attnviz" if shipped else "make it again with attnviz profile, or delete it"
            warn(f"{_unreadable(path, error)}; this stored profile was left out: {mend}.")
    return None


def read_profile(path: Path) -> StoredProfile:
    """A profile.json, or the one in a folder.

    Raises:
        OutputError: there is none, or it is damaged.
    """
    file = path / "profile.json" if path.is_dir() else path
    try:
        return _profile(file, False, read_json(file))
    except (OSError, ValueError) as error:
        mend = "make it again with attnviz profile, or name the folder of a profile"
        raise OutputError(f"{_unreadable(file, error)}; {mend}.") from error


def joined_profiles(new: StoredProfile, earlier: StoredProfile | None) -> StoredProfile:
    """A profile with the parts of an earlier one of the same weights that it has not measured."""
    if earlier is None:
        return new
    sources = {name: new if name in new.parts else earlier for name in PARTS if name in {*new.parts, *earlier.parts}}
    parts = {name: source.parts[name] for name, source in sources.items()}
    roles = dict[HeadId, tuple[StoredRole, ...]]()
    examples = list[RoleExamples]()
    for name, source in sources.items():
        for head, of_head in source.roles.items():
            taken = [role for role in of_head if is_of_part(role.role, name, source.parts, parts)]
            roles[head] = (*roles.get(head, ()), *taken)
        examples += [each for each in source.examples if part_of(each.role, source.parts) == name]
    read = {each["path"]: each["sentences"] for part in parts.values() for each in part["corpora"]}
    corpora = tuple(StoredCorpus(PurePath(path).name, sentences) for path, sentences in read.items())
    licences = earlier.licences | new.licences
    return replace(new, corpora=corpora, roles=roles, examples=tuple(examples), licences=licences, parts=parts)


def _unreadable(file: Path, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"expected a profile.json at {file}, found: {error.strerror or error}"
    return f"{file} is damaged: {error}"


def _user_folder() -> Path | None:
    """The folder of a user's own profiles; None without platformdirs."""
    if importlib.util.find_spec("platformdirs") is None:
        return None
    from platformdirs import user_data_path

    return user_data_path("attnviz", appauthor=False) / "profiles"


def read_json(path: Path) -> Any:
    """The document of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: not JSON, or with NaN or infinite numbers.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise OSError("something that is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("found lists in lists without an end") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text}, which is no number of JSON")
    return value


def _profile(path: Path, shipped: bool, document: Any) -> StoredProfile:
    """Read a profile; ValueError if it is damaged."""
    try:
        return _from_document(path, shipped, document)
    except (AttributeError, LookupError, TypeError, ValueError, UsageError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _from_document(path: Path, shipped: bool, document: Any) -> StoredProfile:
    model, examples = document["model"], document.get("examples")
    profile_file_name(document)
    sizes = int(model["n_layers"]), int(model["n_heads"])
    stacks = tuple(  # a profile is of the encoder alone
        Stack(each["letter"], each["name"], 0, each["n_layers"], each["n_heads"]) for each in model.get("stacks") or ()
    )
    head = partial(head_named, n_layers=sizes[0], n_heads=sizes[1], stacks=stacks)
    roles = dict[HeadId, tuple[StoredRole, ...]]()
    for entry in document["roles"]:
        id = head(entry["id"])
        roles[id] = (*roles.get(id, ()), _role(entry))
    parts = parts_of(document)
    for name, part in parts.items():
        dict(document[name])
        _corpora(part), int(part.get("n") or 0), measured_on(part)
    licences = {str(corpus): str(licence) for corpus, licence in ((examples or {}).get("licences") or {}).items()}
    return StoredProfile(
        path, shipped, _corpora(document), int(document["seed"]), str(document["attnviz"]), roles, model, stacks,
        stored_examples(examples, head), licences, parts,
    )  # fmt: skip


def _corpora(content: dict[str, Any]) -> tuple[StoredCorpus, ...]:
    return tuple(StoredCorpus(PurePath(each["path"]).name, int(each["sentences"])) for each in content["corpora"])


def _role(entry: dict[str, Any]) -> StoredRole:
    role, untrained, (low, high) = str(entry["role"]), entry.get("untrained"), entry["interval"]
    if "offset:" in role and role not in OFFSETS:
        raise ValueError(f"expected a role, found {role}")
    return StoredRole(
        role, float(entry["score"]), float(entry["baseline"]), int(entry["n"]), (float(low), float(high)),
        bool(entry["passed"]), text_or_none(entry["direction"]), None if untrained is None else float(untrained),
        bool(entry.get("refuted")),
    )  # fmt: skip
