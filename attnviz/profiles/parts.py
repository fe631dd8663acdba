"""The parts of a stored profile, each of one run; a later run replaces the parts that it measures.

False discovery rate and control of a part's roles are those of its own run.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from attnviz.measures.patterns import ROLES_ON_REPEATS
from attnviz.profiles.examples import joined_entries
from attnviz.wording import counted, visible

PARTS = ("statistics", "syntax", "coreference", "repeats")  # parts of a profile, keys of profile.json
SYNTACTIC = "syntactic:"  # prefix of the roles of relations

# Titles of published corpora, by the first letters of their files.
_TITLES = {"en_ewt-ud-": "the English Web Treebank", "gap-": "GAP"}

# Keys of a run that are stored with each of its parts.
_OF_RUN = ("attnviz", "seed", "frequencies", "control_texts", "verification", "note")

_TOP = ("attnviz", "model", "seed", "published")


class Merged(NamedTuple):
    """A stored profile merged with a run."""

    document: dict[str, Any]
    taken: tuple[str, ...]  # the parts of the run
    stay: tuple[str, ...]  # the stored parts of more texts


def merged(run: dict[str, Any], earlier: dict[str, Any] | None, date: str | None, *, smaller: bool = False) -> Merged:
    """The document of a run, with the parts of an earlier one of the same weights that it has not measured.

    ``date`` is that of the run, ``2026-11-22``; ``smaller`` lets a part replace one of more texts.
    """

    def size(part: dict[str, Any] | None) -> int:
        return (part and part.get("n")) or 0

    after, before = parts_of(run, date), {} if earlier is None else parts_of(earlier)
    stay = tuple(name for name in after if not smaller and size(before.get(name)) > size(after[name]))
    taken = tuple(name for name in after if name not in stay)
    sources = {name: run if name in taken else earlier or {} for name in PARTS if name in taken or name in before}
    parts = {name: (after if name in taken else before)[name] for name in sources}
    corpora = {corpus["path"]: corpus for part in parts.values() for corpus in part["corpora"]}
    roles, examples = list[dict[str, Any]](), list[tuple[dict[str, Any], set[str]]]()
    for name, source in sources.items():
        for role in source["roles"]:
            # previous-token is taken from text, if there, not from random tokens
            of_text = name == "repeats" and "statistics" in parts and role["role"] not in ROLES_ON_REPEATS
            if part_of(role["role"], source) == name and not of_text:
                roles.append(role)
        if source.get("examples"):
            names = {role["role"] for role in source["examples"]["roles"] if part_of(role["role"], source) == name}
            examples.append((source, names))
    document = {
        **{name: run[name] for name in _TOP if name in run},
        "corpora": list(corpora.values()),
        **{name: source[name] for name, source in sources.items()},
        "roles": roles,
        "parts": parts,
        "examples": joined_entries(examples),
    }
    return Merged(document, taken, stay)


def of_enough_texts(run: dict[str, Any]) -> dict[str, Any]:
    """The document of a run without the parts that have too few texts for any verdict."""
    decided = {part_of(role["role"], run) for role in run["roles"] if not role["too_few"]}
    roles = [role for role in run["roles"] if part_of(role["role"], run) in decided]
    return {**run, **{name: None for name in PARTS if name not in decided}, "roles": roles}


def parts_of(document: dict[str, Any], date: str | None = None) -> dict[str, dict[str, Any]]:
    """Each part's ``corpora``, ``n`` (texts, or random sequences; None if unknown), ``date`` and keys of its run.

    A document without ``parts`` is that of a single run, of this date; None if unknown.
    """
    if document.get("parts"):
        return {name: dict(document["parts"][name]) for name in PARTS if name in document["parts"]}
    of_run = {name: document[name] for name in _OF_RUN if document.get(name) is not None}
    parts = dict[str, dict[str, Any]]()
    for name in PARTS:
        if document.get(name) is not None:
            corpora = corpora_of(name, document)
            n: int | None = sum(corpus["sentences"] for corpus in corpora)
            if name == "repeats":
                of_repeats = [role for role in document["roles"] if role["role"] in ROLES_ON_REPEATS]
                n = max((role.get("texts", role["n"]) for role in of_repeats), default=None)
            parts[name] = {"corpora": corpora, "n": n, "date": date, **of_run}
    return parts


def corpus_in_words(path: str, n: int) -> str:
    """``1,760 sentences of the English Web Treebank``, for a file and how many texts of it were measured."""
    file = PurePath(path)
    unit = {".conllu": "sentence", ".tsv": "paragraph"}.get(file.suffix.lower(), "text")
    known = next((title for start, title in _TITLES.items() if file.name.startswith(start)), file.name)
    return f"{counted(n, unit)} of {visible(known)}"


def measured_on(part: dict[str, Any]) -> str:
    """The corpora of a part with their sizes, and the date, for people."""
    sizes = [corpus_in_words(corpus["path"], corpus["sentences"]) for corpus in part["corpora"]]
    return ", ".join([" and ".join(sizes) or "random tokens", *filter(None, [part.get("date")])])


def corpora_of(part: str, document: dict[str, Any]) -> list[dict[str, Any]]:
    """The corpora of a document's part, by what they hold; those of ``syntax`` by whether its trees are gold."""
    kinds = {"statistics": {"trees", "texts", "chats"}, "coreference": {"names"}, "repeats": set[str]()}
    if part == "syntax":
        kinds["syntax"] = {"trees" if document["syntax"].get("gold") else "texts"}
    by_suffix = {".conllu": "trees", ".tsv": "names", ".txt": "texts"}
    corpora = []
    for corpus in document["corpora"]:
        suffix = PurePath(corpus["path"]).suffix.lower()
        if ("texts" if "columns" in corpus else by_suffix.get(suffix, "chats")) in kinds[part]:
            corpora.append(corpus)
    return corpora


def part_of(role: str, document: Mapping[str, object]) -> str:
    """The part of a role, in a document or among parts by name."""
    if role.startswith(SYNTACTIC):
        return "syntax"
    if role == "coreference":
        return role
    return "repeats" if role in ROLES_ON_REPEATS or document.get("statistics") is None else "statistics"
