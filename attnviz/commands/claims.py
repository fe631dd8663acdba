"""Claims on a model's heads, of a TOML file, a paper's table or a list of heads, and the verdicts on them."""

import json
import math
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.arguments import as_found, check_kind, did_you_mean, is_there, relation_named
from attnviz.commands.profile.exports import RETRIEVAL_HEADS
from attnviz.commands.profile.measure import Profile, refuse_list
from attnviz.errors import CheckpointError, CorpusError, TextError, UsageError
from attnviz.judge.roles import MIN_TEXTS_SHARES, Role, role_key
from attnviz.judge.verdicts import BOTH, DIAGONAL, UNNAMED
from attnviz.language.syntax import DIRECTIONS
from attnviz.language.universal import RELATIONS
from attnviz.measures.estimates import Interval
from attnviz.measures.names import NAME_DIRECTIONS
from attnviz.measures.patterns import PATTERNS, RARE_WORD, ROLES_ON_REPEATS, SINK, WRITTEN
from attnviz.measures.predictions import METRICS
from attnviz.measures.statistics import DIAGONALITY, NOWHERE, scalars
from attnviz.measures.tallies import OFFSETS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.options import typed
from attnviz.present.kv_heads import kv_groups
from attnviz.present.output_folder import OutputFile
from attnviz.present.published import role_name
from attnviz.profiles.parts import SYNTACTIC
from attnviz.profiles.store import read_json
from attnviz.version import __version__
from attnviz.wording import quoted, visible

VERDICTS = HOLDS, UNDECIDED, FAILS = "holds", "cannot be decided", "fails"  # from the best to the worst
REPORTED = "reported"  # the verdict of a number that stands beside a paper's, and of which nothing is claimed
CLAIMS_FILE = "claims.toml"  # the file of claims where none is named
CLAIMED = 10  # heads that a new one has

# Kinds of claims, by the key that says what is claimed, each with the other keys that it needs.
_NEEDS = {
    "role": ("head",),
    "label": ("head", "text"),
    "score": ("head", "text", "at_least or at_most"),
    "distance_to": ("text or corpus", "at_least or at_most"),
    "ablate": ("head", "corpus", "at_least or at_most"),
}

_MAY = {"role": ("corpus", "at_least", "at_most", "direction"), "distance_to": ("head",)}
_TYPES: dict[str, Any] = dict.fromkeys(("model", "text", "head", "direction", *_NEEDS), str)
_TYPES |= {"corpus": Sequence[str | Path], "at_least": float, "at_most": float}
# what a number of a paper is to be above, in words
CONTROLS = {"untrained": "the same number of the untrained copy", "baseline": "the baseline"}
# options of the command line that measures the same again
_AGAIN = "revision adapter tokenizer dtype attention seed limit text_column pair_column frequencies".split()
_NO_HEAD = HeadId(0, 0)  # of claims on all heads, or none
_HEADER = re.compile(r"\s*\[\[\s*[\"']?claim[\"']?\s*\]\]")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim; without bounds a role must pass, and a label be there."""

    place: str  # the file or paper where it stands
    line: int | None = None  # None for a paper's
    kind: str  # what is claimed: role, label, score, distance_to or ablate; table for a row of a paper's
    what: str  # the role, label, score, model or metric
    head: str = ""  # its id as written; '' for all heads, or the model
    id: HeadId = _NO_HEAD  # of that head in the model
    text: str = ""
    corpus: tuple[Path, ...] = ()  # of a role without one a stored profile, or random tokens
    direction: str = ""  # of a relation, who attends to whom; '' for any
    at_least: float | None = None
    at_most: float | None = None
    published: str = ""  # what a paper has measured, in words

    @property
    def prefix(self) -> str:
        return f"{self.place}{'' if self.line is None else f':{self.line}'}: "

    @property
    def words(self) -> str:
        what = role_name(self.what, self.direction or None) if self.kind == "role" else visible(self.what)
        what = {"distance_to": f"distance to {what}", "ablate": f"{what} without it"}.get(self.kind, what)
        bounds = [f"{sign} {end:g}" for sign, end in (("≥", self.at_least), ("≤", self.at_most)) if end is not None]
        on = f"on {quoted(self.text)}" if self.text else ""
        if self.kind == "role" and self.what in ROLES_ON_REPEATS:
            on = "on random repeats"
        return " ".join(filter(None, [self.head, what, *bounds, self.published, on]))


def read_claims(path: Path) -> tuple[tuple[Claim, ...], str | None, str]:
    """The claims of a TOML file, the model that it names, and where; names of files beside it are found from anywhere.

    Of a list of heads the model alone.

    Raises:
        UsageError: it cannot be read, or a key, a value or a name is wrong; with the line.
    """
    listed = read_head_list(path)
    if listed is not None:
        return (), listed.model, f"{listed.file}: "
    try:
        text = path.read_text(encoding="utf-8-sig")
        of_file = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"expected a TOML file of claims at {path} (corpora: with --published PAPER, or --init), found: {why}."
        ) from error
    tables = of_file.pop("claim", None)
    lines = text.split("\n")
    first = [number for number, line in enumerate(lines, 1) if _HEADER.match(line)]
    top = _Place(path, lines, 1, len(lines) + 1)
    of_file = _checked(top, of_file, ("model", "text", "corpus", "claim"))
    if not (isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)):
        raise UsageError(f"{path}: expected at least one [[claim]], found none.")
    places = [_Place(path, lines, *ends) for ends in pairwise([*first, len(lines) + 1])]
    if len(places) != len(tables):  # claim = [{...}], or a text with such a line
        places = [replace(top, first=top.line("claim"))] * len(tables)
    claims = tuple(_claim(place, given, of_file) for place, given in zip(places, tables, strict=True))
    return claims, of_file.get("model"), f"{path}:{top.line('model')}: "


def write_claims(path: Path, given: Mapping[str, Any], profile: Profile) -> None:
    """Write a file that claims of the clearest heads that the score of their role stays above its interval now.

    Of a role that only describes it claims that the head still has it; general roles and sinks come last. ``given`` are
    the arguments of :func:`attnviz.check` by name: a model without a name is left out, names of files are written as
    seen from the folder of ``path``, and a comment has the command line that measures the same again.

    Raises:
        UsageError: no head passes a role over the corpus.
        OutputError: it cannot be written.
    """

    def bound(role: Role) -> float:  # in two decimals, at least 0.005 below the interval: rounding breaks no claim
        assert role.interval is not None
        return math.floor(100 * role.interval[0] - 0.5) / 100

    def string(value: object) -> str:  # a string of TOML is one of JSON, but for DEL
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")

    def seen_from_file(name: str | Path) -> str:
        if Path(name).is_absolute() or not is_there(name):
            return string(name)
        return string(Path(os.path.relpath(name, path.parent)).as_posix())

    clearest = sorted((roles[0] for roles in profile.roles_by_head().values() if roles), key=role_key)
    claimed = [role for role in clearest if role.describes or bound(role) > 0][:CLAIMED]
    if not claimed:
        raise UsageError(
            f"no head has a role on {profile.source()}: nothing to claim. Give more texts: patterns such as "
            f"previous-token are roles from {MIN_TEXTS_SHARES} texts on."
        )
    again = {name: given[name] for name in _AGAIN if given[name] is not None}
    if not isinstance(given["tokenizer"], str | Path):
        again.pop("tokenizer", None)
    command = shlex.join(["attnviz", "check", path.name, *typed(again)])
    lines = [f"# attnviz {__version__} measured these roles. Check that heads keep them: {visible(command)}"]
    model = "minilm" if given["model"] is None and given["adapter"] is None else given["model"]
    if isinstance(model, str | Path):
        lines.append(f"model = {seen_from_file(model)}")
    lines.append(f"corpus = [{', '.join(map(seen_from_file, given['init']))}]")
    for role in claimed:
        lines += ["", "[[claim]]", f"head = {string(role.id)}", f"role = {string(role.role)}"]
        if role.direction is not None:
            lines.append(f"direction = {string(role.direction)}")
        if not role.describes:
            lines.append(f"at_least = {bound(role):g}")
    OutputFile(path, "FILE").write("\n".join([*lines, ""]))


@dataclass(frozen=True)
class _Place:
    """Lines of a file in which keys stand."""

    path: Path
    lines: Sequence[str]
    first: int  # from 1
    end: int  # one after the last

    def line(self, key: str = "") -> int:
        """Line of a key; without one the first."""
        named = re.compile(rf"[\s\[]*(['\"]?){re.escape(key)}\1\s*[=\]]")
        numbers = (number for number in range(self.first, self.end) if key and named.match(self.lines[number - 1]))
        return next(numbers, self.first)

    def refused(self, message: object, key: str = "") -> UsageError:
        """An error of a key, or of the whole claim."""
        return UsageError(f"{self.path}:{self.line(key)}: {message}")


def _claim(place: _Place, given: dict[str, Any], of_file: Mapping[str, Any]) -> Claim:
    kinds = [kind for kind in _NEEDS if kind in given]
    takes = tuple(key for key in _TYPES if key != "model")
    if len(kinds) == 1:
        takes = (*kinds, *(key for need in _NEEDS[kinds[0]] for key in need.split(" or ")), *_MAY.get(kinds[0], ()))
    given = _checked(place, given, takes)
    if len(kinds) != 1:
        raise place.refused(f"expected one of {', '.join(_NEEDS)} in a claim, found {' and '.join(kinds) or 'none'}.")
    (kind,) = kinds
    for key in ("text", "corpus"):
        if key in of_file and key in takes and not {"text", "corpus"} & given.keys():
            given[key] = of_file[key]
    if kind == "distance_to" and len(given.get("corpus", ())) > 1:
        raise place.refused("a distance is over one corpus, found several.", "corpus")
    lacking = [need for need in _NEEDS[kind] if not given.keys() & {*need.split(" or ")}]
    if lacking:
        raise place.refused(f"a claim on {kind} needs {' and '.join(lacking)}.")
    if {"text", "corpus"} <= given.keys():
        raise place.refused(f"a claim on {kind} takes a text or a corpus, not both.")
    what = given.pop(kind)
    if kind in ("role", "label", "score"):  # relations by their name alone: obj
        names = map(relation_named, what.split(BOTH))
        what = BOTH.join(f"{SYNTACTIC}{name}" if name.partition(":")[0] in RELATIONS else name for name in names)
    for key, why in _wrong_values(kind, what, given):
        raise place.refused(why, key)
    return Claim(place=str(place.path), line=place.first, kind=kind, what=what, **given)


def _wrong_values(kind: str, what: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys whose values no claim of this kind can have, each with the reason."""
    labels = (*PATTERNS, SINK, "broad", *(f"{SYNTACTIC}{name}" for name in RELATIONS))
    known: dict[str, Collection[str]] = {
        "role": dict.fromkeys((*labels, "semantic", RARE_WORD, *WRITTEN, *ROLES_ON_REPEATS, "coreference", *OFFSETS)),
        "label": (*labels, DIAGONAL, UNNAMED),
        "score": dict.fromkeys((*scalars(), DIAGONALITY, NOWHERE, *labels)),
        "ablate": METRICS,
    }
    values = []
    if kind in known:
        values = [(kind, part, known[kind]) for part in (what.split(BOTH) if kind == "label" else [what])]
    if "direction" in given:
        directions: Collection[str] = DIRECTIONS if what.startswith(SYNTACTIC) else ()
        if what == "coreference":
            directions = NAME_DIRECTIONS
        if not directions:
            yield "direction", f"the role {what!r} has no direction; leave it out."
        values.append(("direction", given["direction"], directions))
    for key, value, names in values:
        base, _, subtype = value.rpartition(":")  # syntactic:nsubj:pass
        if value not in names and not (base.startswith(SYNTACTIC) and base in names and subtype.isidentifier()):
            listed = [name for name in names if ":" not in name]
            if any(SYNTACTIC in name for name in names):
                listed.append(f"a relation such as {SYNTACTIC}obj")
            if OFFSETS[0] in names:
                listed.append("a distance such as offset:-3")
            yield key, f"unknown {key} {value!r}: expected one of {', '.join(listed)}.{did_you_mean(value, names)}"
    bounds = {key: given[key] for key in ("at_least", "at_most") if key in given}
    if len(bounds) == 2 and bounds["at_least"] > bounds["at_most"]:
        yield "at_least", "at_least is above at_most, so that nothing can hold."
    for key, bound in bounds.items():
        if kind == "role" and abs(bound) > 1:
            yield key, f"a role's score is a share, from 0 to 1; found {key} = {bound:g}."


def _checked(place: _Place, given: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The values by key, with files as they are found; UsageError for an unknown key, or a wrong type."""
    values = dict(given)
    for key, value in given.items():
        several = [value] if key == "corpus" and isinstance(value, str) else value
        try:
            if key not in known:
                raise UsageError(f"unknown key {key!r}: expected any of {', '.join(known)}.{did_you_mean(key, known)}")
            if isinstance(value, str) and "\0" in value:
                raise UsageError(f"{key} has a null character; leave it out.")
            if value in ("", []):
                raise UsageError(f"{key} is empty; leave it out, or fill it in.")
            if _TYPES[key] is float and not (type(value) in (int, float) and abs(value) <= sys.float_info.max):
                raise UsageError(f"expected {key} as a number, found {as_found(value)}.")
            check_kind(key, several, _TYPES[key])
        except (UsageError, TextError) as error:
            raise place.refused(error, key) from error
        if key in ("model", "distance_to", "corpus"):
            beside = place.path.parent
            names = [several] if isinstance(several, str) else several
            names = [str(beside / name) if is_there(beside / name) else name for name in names]
            values[key] = tuple(map(Path, names)) if key == "corpus" else names[0]
    return values


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Let the message of an error begin with the place of what it is about."""
    try:
        yield
    except (UsageError, TextError, CorpusError, CheckpointError) as error:
        raise type(error)(f"{place}{error}") from error


@dataclass(frozen=True)
class CheckedClaim:
    """A claim, one of the :data:`VERDICTS` or :data:`REPORTED`, and the evidence."""

    claim: Claim
    verdict: str
    measured: float | str | None = None  # a number, or the label that the head has; None where there is none
    n: int | None = None  # instances, content positions, texts, tokens or heads of the number
    baseline: float | None = None
    interval: Interval | None = None  # of the number over a corpus
    source: str = ""  # the stored profile, or the profile's corpora; '' where the claim names all
    reason: str = ""  # why it fails or cannot be decided, where the numbers do not say so
    sentence: str | None = None  # of a role, for a paper
    untrained: float | None = None  # of a role, or in a paper's table, the same of an untrained copy


def decided(
    claim: Claim, value: float, n: int, *, few: str = "", controlled: bool = False, **evidence: Any
) -> CheckedClaim:
    """A number by the claim's bounds, each of which has all of its interval on one side.

    Without an ``interval`` it is exact; with one of None, over a corpus, it decides nothing, as where ``few`` says why.
    If ``controlled``, it is to be above ``untrained`` and ``baseline``, too. ``evidence``: see :class:`CheckedClaim`.
    """
    low, high = evidence.get("interval") or (value, value)
    limits = list[tuple[bool, bool, str, str]]()  # whether it fails, whether it holds, what the limit is, why it fails
    if claim.at_least is not None:
        limits.append((high < claim.at_least, low >= claim.at_least, "the bound", ""))
    if claim.at_most is not None:
        limits.append((low > claim.at_most, high <= claim.at_most, "the bound", ""))
    controls = [(evidence[name], words) for name, words in CONTROLS.items() if evidence.get(name) is not None]
    for score, words in sorted(controls, reverse=True) if controlled else ():
        limits.append((high <= score, low > score, words, "it is not above its control"))
    verdict, why = HOLDS, ""
    if not few and not claim.text and evidence.get("interval", ()) is None:
        few = "too few texts or prompts, or too few with an effect, for an interval"
    if few:
        verdict, why = UNDECIDED, few
    elif any(fails for fails, *_ in limits):
        verdict, why = FAILS, next((failed for fails, *_, failed in limits if fails and failed), "")
    elif not all(holds for _, holds, *_ in limits):
        verdict, why = UNDECIDED, next(f"{limit} is within the interval" for _, holds, limit, _ in limits if not holds)
    reason = "; ".join(filter(None, [evidence.pop("reason", ""), why]))
    return CheckedClaim(claim, verdict, value, n, reason=reason, **evidence)


class HeadList(NamedTuple):
    """A number for each KV head, layer by layer, and what the config.json beside it says."""

    file: Path
    rows: list[list[float]]
    threshold: float  # from which on a KV head retrieves
    model: str | None
    weights_sha256: Any  # None where it says none

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Raise UsageError where it is of another model, or has other sizes."""
        refuse_list(checkpoint)
        n_layers, found = checkpoint.n_layers, sorted({len(row) for row in self.rows})
        n_kv_heads = len(kv_groups(checkpoint)) // n_layers
        if (len(self.rows), found) != (n_layers, [n_kv_heads]):
            numbers = " or ".join(map(str, found))
            raise UsageError(
                f"{self.file}: expected {n_layers} lines of {n_kv_heads}, for the layers and KV heads of "
                f"{checkpoint.name}, found {len(self.rows)} lines of {numbers} numbers."
            )
        if self.weights_sha256 not in (None, checkpoint.weights_sha256):
            raise UsageError(f"{self.file}: expected a list of {checkpoint.name}, found other weights, {self.model}.")


def read_head_list(path: Path) -> HeadList | None:
    """The list in a folder, or in a .tsv file; None for any other file.

    UsageError where it is damaged.
    """
    file = path / RETRIEVAL_HEADS if path.is_dir() else path
    if file.suffix != ".tsv":
        return None
    try:
        rows = [[float(cell) for cell in line.split("\t")] for line in file.read_text(encoding="utf-8").splitlines()]
        if not rows or not all(math.isfinite(value) for row in rows for value in row):
            raise ValueError("no numbers")
        beside = file.with_name("config.json")
        config = read_json(beside) if beside.exists() else {}
        named = config.get("model_name")
        model = named if isinstance(named, str) else None
        return HeadList(file, rows, float(config.get("threshold", 0.5)), model, config.get("weights_sha256"))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"expected {file} as a list for DuoAttention, numbers with tabs between: {error}.") from error
