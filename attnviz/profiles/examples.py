"""Examples of a profile's roles: sentences with a query, a key, a weight and the right pair."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from attnviz.models.head_ids import HeadId
from attnviz.profiles.records import entry_of, record_of

GROUPS = ("best", "failures")  # clearest hits and clearest misses
_WORD = re.compile(r"\S+")


class Unit(NamedTuple):
    """A word or token: its text, and its characters in the sentence; an empty range for a special token."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Example:
    """One text in which a head attends from a query to a key."""

    corpus: str  # the file's name
    number: int  # the index of the text
    text: str  # as the model reads it
    query: Unit  # the word, name or token that attends
    key: Unit  # the one that it attends to most
    weight: float  # of the key, summed over its tokens, mean over those of the query
    hit: bool  # whether the key is right for the role
    gold: tuple[Unit, Unit] | None  # the right pair; None where the role has none
    gold_weight: float | None
    id: str | None = None  # of the text in its file


@dataclass(frozen=True)
class RoleExamples:
    """Examples of one role of one head, by the groups of :data:`GROUPS`."""

    id: HeadId
    role: str
    direction: str | None
    best: tuple[Example, ...] = ()
    failures: tuple[Example, ...] = ()

    @property
    def groups(self) -> dict[str, tuple[Example, ...]]:
        return {group: getattr(self, group) for group in GROUPS}


@dataclass(frozen=True)
class Part:
    """A word of an example's text, or a piece of one, or ``…`` for words left out."""

    text: str
    ends: frozenset[str] = frozenset()  # of query, key, gold those that it belongs to; gold where it is not the key
    joined: bool = False  # whether no space precedes it


def examples_entry(examples: Iterable[RoleExamples]) -> dict[str, Any] | None:
    """The entry ``examples`` of profile.json, each text once; None without examples."""
    texts: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}

    def entry(example: Example) -> dict[str, Any]:
        values = entry_of(example)
        text = {name: values.pop(name) for name in ("corpus", "number", "text")}
        id = values.pop("id")
        text |= {} if id is None else {"id": id}
        index, _ = texts.setdefault((example.corpus, example.number), (len(texts), text))
        return {"text": index, **values}

    roles = [
        {"id": str(role.id), "role": role.role, "direction": role.direction}
        | {group: [entry(example) for example in some] for group, some in role.groups.items()}
        for role in examples
    ]
    return {"texts": [text for _, text in texts.values()], "roles": roles} if roles else None


def stored_examples(
    entry: dict[str, Any] | None, head: Callable[[str], HeadId] = HeadId.parse
) -> tuple[RoleExamples, ...]:
    """Read the entry ``examples`` of profile.json; any error of a dict where it is damaged."""

    def of_role(role: dict[str, Any], texts: list[dict[str, Any]]) -> RoleExamples:
        groups = {
            group: tuple(record_of(Example, example | texts[example["text"]]) for example in role[group])
            for group in GROUPS
        }
        return record_of(RoleExamples, role, id=head(role["id"]), **groups)

    return () if entry is None else tuple(of_role(role, entry["texts"]) for role in entry["roles"])


def joined_entries(entries: Iterable[tuple[dict[str, Any], set[str]]]) -> dict[str, Any] | None:
    """One entry ``examples`` from several documents of profile.json, each with the names of its roles to take."""
    examples = list[RoleExamples]()
    licences = dict[str, str]()
    for document, names in entries:
        entry = document.get("examples") or {}
        licences |= entry.get("licences") or {}
        examples += [role for role in stored_examples(entry or None) if role.role in names]
    joined = examples_entry(examples)
    if joined is not None and licences:
        corpora = {text["corpus"] for text in joined["texts"]}
        joined["licences"] = {corpus: licence for corpus, licence in licences.items() if corpus in corpora}
    return joined


def parts_of_text(example: Example, most: int | None = None) -> list[Part]:
    """The words of an example's text, with the pairs they belong to; a space that is an end of a pair is a word, too.

    Texts of more than ``most`` words are cut to stretches around the pairs, with ``…`` between.
    """
    ends = {"query": example.query, "key": example.key}
    if not example.hit and example.gold is not None:
        attending, attended = example.gold
        ends["gold"] = attended if attending == example.query else attending  # the right name may be what attends
    cuts = {cut for unit in ends.values() for cut in (unit.start, unit.end)}
    parts = list[Part]()
    whole = example.text
    words = {word.span() for word in _WORD.finditer(whole)}
    words |= {unit[1:] for unit in ends.values() if unit.start < unit.end and not unit.text.strip()}
    for begin, stop in sorted(words):
        for start, end in pairwise([begin, *sorted(cut for cut in cuts if begin < cut < stop), stop]):
            inside = frozenset(name for name, unit in ends.items() if unit.start <= start and end <= unit.end)
            joined = start > begin
            if parts and inside and inside == parts[-1].ends:  # words of one name
                last = parts.pop()
                parts.append(replace(last, text=f"{last.text}{'' if joined else ' '}{whole[start:end]}"))
            else:
                parts.append(Part(whole[start:end], inside, joined))
    for special in dict.fromkeys(unit for unit in ends.values() if unit.start == unit.end):
        names = frozenset(name for name, unit in ends.items() if unit == special)
        parts.insert(0 if special.end == 0 else len(parts), Part(special.text, names))
    return parts if most is None or len(parts) <= most else _windowed(parts, most)


def _windowed(parts: list[Part], most: int) -> list[Part]:
    """The words of pairs and as many around each as there is room for, ``…`` for those left out."""
    ends = [i for i, part in enumerate(parts) if part.ends] or [0]  # a pair of spaces is no word
    kept = set(ends)
    for around in range(1, most):
        wider = {i + step for i in ends for step in range(-around, around + 1)} & set(range(len(parts)))
        if len(wider) > most:
            break
        kept = wider
    starts = [i for i, part in enumerate(parts) if not part.joined]
    for start, stop in pairwise([*starts, len(parts)]):  # a word is kept whole, though a part of it is an end
        if {*ends}.intersection(range(start, stop)):
            kept |= set(range(start, stop))
    shown: list[Part] = []
    for i, part in enumerate(parts):
        if i in kept:
            shown.append(part)
        elif not shown or shown[-1].text != "…" or shown[-1].ends:
            shown.append(Part("…"))
    return shown
