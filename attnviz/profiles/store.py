"""Profiles on disk by the hash of the weights, which ``attnviz heads`` reads.

A profile is in the user's data folder (by platformdirs) or ships with attnviz. Its file name begins with the model's
shape, so that weights are hashed only if there is a profile of that shape. Its parts may be of several runs
(:mod:`attnviz.profiles.parts`).
"""

import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from attnviz.errors import OutputError, UsageError
from attnviz.judge.roles import Role, role_key
from attnviz.locks import lock, unlock
from attnviz.measures.patterns import describes
from attnviz.measures.tallies import OFFSETS
from attnviz.models.head_ids import HeadId, Stack, head_named, one_stack
from attnviz.models.sources import FULL_NAMES, Source, weights_sha256
from attnviz.profiles.examples import RoleExamples, stored_examples
from attnviz.profiles.parts import PARTS, Merged, measured_on, merged, of_enough_texts, part_of, parts_of
from attnviz.profiles.records import record_of

_SHIPPED = Path(__file__).parents[1] / "data" / "profiles"


class JudgedRelation(NamedTuple):
    """A relation of a corpus with the verdict of its best head."""

    relation: str
    n: int  # instances
    offset: int  # the best fixed one
    verdict: Role  # of the head with the highest accuracy, in the direction in which it is the best

    @property
    def largest_guess(self) -> str:
        """Name of the best guess of what the head finds; of an offset its number."""
        name = max(self.verdict.baselines, key=self.verdict.baselines.__getitem__)
        return f"{self.offset:+d}" if name == "fixed offset" else name


@dataclass(frozen=True)
class StoredProfile:
    """A profile read from disk; without corpora if measured on random tokens only."""

    path: Path
    shipped: bool  # or the user's own
    document: dict[str, Any]  # that of profile.json
    roles: dict[HeadId, tuple[Role, ...]]  # in a shipped profile only those that hold
    stacks: tuple[Stack, ...] = ()
    examples: tuple[RoleExamples, ...] = ()
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # as of attnviz.profiles.parts.parts_of
    # the most frequent first; none where only roles that hold are stored
    judged_relations: tuple[JudgedRelation, ...] = ()

    @property
    def model(self) -> dict[str, Any]:
        model = self.document["model"]
        return {"full_name": FULL_NAMES.get(model["name"], model["name"]), **model}

    @property
    def licences(self) -> dict[str, str]:
        licences = (self.document.get("examples") or {}).get("licences") or {}
        return {str(corpus): str(licence) for corpus, licence in licences.items()}

    @property
    def measured_on(self) -> str:
        """The corpora with their sizes, for people."""
        return measured_on(self.document)

    def measured_by(self, roles: Iterable[Role]) -> str:
        """The corpora that measured these roles, with their sizes, for people: if several, each with its parts."""
        parts: dict[str, list[str]] = {}
        for name in dict.fromkeys(part_of(role.role, self.parts) for role in roles):
            if name in self.parts:
                parts.setdefault(measured_on(self.parts[name]), []).append(name)
        if len(parts) == 1:
            return next(iter(parts))
        return "; ".join(f"{', '.join(names)}: {corpora}" for corpora, names in parts.items())

    @property
    def origin(self) -> dict[str, Any]:
        """Its source for a JSON document, without folders, so that it is the same on any machine."""
        corpora = self.document["corpora"]
        return {
            "source": "shipped" if self.shipped else "yours",
            "file": self.path.name,
            "attnviz": self.document["attnviz"],
            "seed": self.document["seed"],
            "sentences": sum(corpus["sentences"] for corpus in corpora),
            "corpora": [
                {"name": PurePath(corpus["path"]).name, "sentences": corpus["sentences"]} for corpus in corpora
            ],
            "parts": {name: measured_on(part) for name, part in self.parts.items()},
        }

    def of(self, head: HeadId) -> tuple[Role, ...]:
        """The roles that one head has, the clearest first."""
        return tuple(sorted((role for role in self.roles.get(head, ()) if role.holds), key=role_key))


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
    called with a message if an earlier profile is damaged, which is then replaced. OutputError where it cannot be
    stored; the earlier file stays.
    """
    folder = _user_folder()
    if folder is None:
        raise OutputError(
            "the profile was not stored, and attnviz heads will not show it, because the package platformdirs is not "
            "installed; type: pip install 'attnviz[profile]'"
        )
    path, staged = folder / profile_file_name(run), folder / f".attnviz-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = lock(folder, wait=True)  # other runs wait while this one reads, merges and writes
        try:
            earlier = _search(_shape_of(run), run["model"]["weights_sha256"], warn)
            after = merged(run, None if earlier is None else earlier.document, date, smaller=smaller)
            if after.taken:
                content = json.dumps(after.document, separators=(",", ":"), allow_nan=False)
                staged.write_text(f"{content}\n", encoding="utf-8")
                staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
            unlock(held)
    except OSError as error:
        raise OutputError(
            f"the profile was not stored, and attnviz heads will not show it: cannot write to {folder}: "
            f"{error.strerror or error}; make room or mend its permissions, and profile again."
        ) from error
    return path, after


def keep_profile(run: dict[str, Any], date: str, *, smaller: bool) -> Iterator[str]:
    """Store a run for ``attnviz heads`` as :func:`store_profile` does; yields messages on what was stored of it."""
    if run["model"].get("stacks"):
        yield "not kept for attnviz heads, which shows no roles of encoder-decoders"
        return
    damaged = list[str]()
    kept = of_enough_texts(run)
    few = [name for name in PARTS if run[name] is not None and kept[name] is None]
    if few:
        yield f"not kept for attnviz heads, of too few texts for a verdict: {', '.join(few)}"
    try:
        path, after = store_profile(kept, date, smaller=smaller, warn=damaged.append)
    except OutputError as error:
        yield str(error)
        return
    yield from damaged
    if after.taken:
        yield f"kept for attnviz heads: {', '.join(after.taken)}: {path}"
    if after.stay:
        yield f"attnviz heads still shows the stored {' and '.join(after.stay)}, of more texts; --store replaces them"


def find_profile(source: Source, shape: str, warn: Callable[[str], None]) -> StoredProfile | None:
    """The stored profile of exactly these weights: the user's own, else the shipped one.

    Weights are hashed only if one has the ``shape`` (:func:`model_shape`, or ``*``); ``warn`` tells damaged ones.
    """
    return _search(shape, weights_sha256(source), warn) if _files(shape, "*") else None


def _files(shape: str, weights: str | None) -> list[Path]:
    folders = (_user_folder(), _SHIPPED)
    return [file for folder in folders if folder for file in folder.glob(f"{shape}-{weights}.json")]


def _search(shape: str, weights: str | None, warn: Callable[[str], None]) -> StoredProfile | None:
    for path in _files(shape, weights):
        shipped = path.parent == _SHIPPED
        try:
            profile = profile_of_document(read_json(path), path, shipped)
            if path.name != profile_file_name(profile.document):
                raise ValueError("found one of another model than its name says")
        except (OSError, ValueError) as error:
            mend = "reinstall attnviz" if shipped else "make it again with attnviz profile, or delete it"
            warn(f"{_unreadable(path, error)}; this stored profile was left out: {mend}.")
        else:
            return profile
    return None


def read_profile(path: Path) -> StoredProfile:
    """A profile.json, or the one in a folder; OutputError where there is none, or it is damaged."""
    file = path / "profile.json" if path.is_dir() else path
    try:
        return profile_of_document(read_json(file), file)
    except (OSError, ValueError) as error:
        mend = "make it again with attnviz profile, or name the folder of a profile"
        raise OutputError(f"{_unreadable(file, error)}; {mend}.") from error


def _unreadable(file: Path, error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"expected a profile.json at {file}, found: {error.strerror or error}"
    return f"{file} is damaged: {error}"


def _user_folder() -> Path | None:
    if importlib.util.find_spec("platformdirs") is None:
        return None
    from platformdirs import user_data_path

    return user_data_path("attnviz", appauthor=False) / "profiles"


def read_json(path: Path) -> Any:
    """The document of a JSON file; OSError or ValueError where it cannot be read, or has infinite numbers."""
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


def profile_of_document(document: Any, path: Path = Path("profile.json"), shipped: bool = False) -> StoredProfile:
    """A profile from the document of a profile.json; ValueError if it is damaged."""
    try:
        model, examples = document["model"], document.get("examples")
        profile_file_name(document)
        int(document["seed"]), str(document["attnviz"]), dict((examples or {}).get("licences") or {})
        stacks = tuple(  # a profile is of the encoder alone
            Stack(stack["letter"], stack["name"], 0, stack["n_layers"], stack["n_heads"])
            for stack in model.get("stacks") or ()
        )
        numbers = model.get("attending_layers") or range(int(model["n_layers"]))
        stacks = stacks or (one_stack(numbers, int(model["n_heads"])),)
        head = partial(head_named, stacks=stacks)
        roles = dict[HeadId, tuple[Role, ...]]()
        for entry in document["roles"]:
            role = _role(head(entry["id"]), entry)
            roles[role.id] = (*roles.get(role.id, ()), role)
        parts = parts_of(document)
        measured_on(document)
        for name, part in parts.items():
            dict(document[name])
            int(part.get("n") or 0), measured_on(part)
        return StoredProfile(
            path=path,
            shipped=shipped,
            document=document,
            roles=roles,
            stacks=stacks,
            examples=stored_examples(examples, head),
            parts=parts,
            judged_relations=tuple(
                _relation(entry, head(entry["best"]["id"]))
                for entry in (document.get("syntax") or {}).get("relations", ())
                if "role" in entry["best"]
            ),
        )
    except (AttributeError, LookupError, TypeError, ValueError, UsageError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _relation(entry: dict[str, Any], id: HeadId) -> JudgedRelation:
    verdict = _role(id, entry["best"]["role"])
    return JudgedRelation(str(entry["relation"]), int(entry["n"]), int(entry["offset"]), verdict)


def _role(id: HeadId, entry: dict[str, Any]) -> Role:
    role = str(entry["role"])
    if "offset:" in role and role not in OFFSETS:
        raise ValueError(f"expected a role, found {role}")
    known: dict[str, Any] = {"texts": 0, "threshold": "", "baselines": {}, "difference": None}
    known |= entry | {"p": None, "q": None}
    if describes(role):  # it has no evidence
        known |= {"interval": None, "difference": None, "untrained": None, "refuted": False, "simultaneous_over": None}
    return record_of(Role, known, id=id)
