"""Examples of a stored profile, read without a corpus: ``attnviz profile --show``."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from attnviz.errors import OutputError, UsageError
from attnviz.model.head_ids import HeadId, head_named, select_heads
from attnviz.model.wording import counted, rounded, visible
from attnviz.patterns.examples import Example, RoleExamples, examples_entry, parts_of_text, stored_examples
from attnviz.patterns.profile_parts import SYNTACTIC
from attnviz.results.published import ARROWS
from attnviz.results.tables import Column, column_table, notes

LONGEST = 60
"""Words of a text that are shown."""

_BRACKETS = {"query": "[]", "key": "{}", "gold": "()"}


def read_profile(path: Path) -> dict[str, Any]:
    """The document of a profile.json, or of the one in a folder.

    Raises:
        OutputError: there is none.
    """
    file = path / "profile.json" if path.is_dir() else path
    try:
        if file.exists() and not file.is_file():  # a pipe would be waited for
            raise ValueError("something that is no file")
        document = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(document, dict) and isinstance(document.get("roles"), list):
            return document
        found = "JSON without a list of roles"
    except OSError as error:
        found = error.strerror or "nothing that can be read"
    except json.JSONDecodeError as error:
        found = f"broken JSON ({error})"
    except UnicodeDecodeError:
        found = "no UTF-8 text"
    except (ValueError, RecursionError) as error:
        found = str(error)
    raise OutputError(f"expected a profile.json at {file}, found: {found}; name the folder of a profile.")


def chosen_examples(document: dict[str, Any], wanted: Sequence[str], path: Path) -> tuple[RoleExamples, ...]:
    """The examples of heads, of roles or relations, or, where both are named, of these roles of these heads.

    Args:
        document: of profile.json.
        wanted: ``L2H8``, ``L2``, ``L0-3``; ``obj``, ``sink``, ``previous``, ``syntactic``, …
        path: of the document, for messages.

    Raises:
        UsageError: there are no such examples, or none at all.
        OutputError: they are damaged.
    """
    try:
        examples = stored_examples(document)
        model = document["model"]
        n_layers, n_heads = int(model["n_layers"]), int(model["n_heads"])
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError(f"{path} is damaged: {error}; delete it, or make it again with attnviz profile.") from error
    if not examples:
        raise UsageError(
            f"the profile {path} has no examples: expected one of a corpus, with --examples above 0; make it again "
            "with attnviz profile CORPUS."
        )
    roles = {each.role for each in examples}
    named = [name for name in wanted if any(name in _names(role) for role in roles)]
    heads = [_heads(name, n_layers, n_heads, roles) for name in wanted if name not in named]
    of_role = [each for each in examples if not named or not _names(each.role).isdisjoint(named)]
    for some in heads:
        if not any(each.id in some for each in of_role):
            has = ", ".join(sorted({each.role.removeprefix(SYNTACTIC) for each in examples if each.id in some}))
            why = f"of {has} only" if has else "none: no role passes there, and no relation was judged"
            first, last = some[0], some[-1]
            told = str(first) if first == last else f"{first} to {last}"
            raise UsageError(f"there are no examples of {' '.join([told, *named])}: there are {why}.")
    ids = {head for some in heads for head in some}
    clearness = {(role.get("id"), role.get("role")): _clearness(role) for role in document["roles"]}
    found = [each for each in of_role if not heads or each.id in ids]
    return tuple(sorted(found, key=lambda each: (each.id, *clearness.get((str(each.id), each.role), (True, 0.0)))))


def _clearness(role: dict[str, Any]) -> tuple[bool, float]:
    """Roles that pass come first, of these the one of the largest error reduction."""
    return not role.get("passed"), -float(role.get("gain") or 0.0)


def _names(role: str) -> set[str]:
    """What a role may be called by: ``syntactic:obj``, ``obj``, ``syntactic``."""
    relation = role.removeprefix(SYNTACTIC)
    return {role, relation, role.removesuffix("-token"), "syntactic" if relation != role else role}


def _heads(name: str, n_layers: int, n_heads: int, roles: set[str]) -> list[HeadId]:
    """The heads of ``L2H8``, ``L2`` or ``L0-3``; UsageError tells the roles that there are, too."""
    try:
        return select_heads(name, n_layers, n_heads)
    except UsageError:
        others = ", ".join(sorted({each.removeprefix(SYNTACTIC) for each in roles}))
        expected = f"a role or relation with examples ({visible(others)}), layers such as L2 or"
        return [head_named(name, n_layers, n_heads, expected)]


def examples_document(document: dict[str, Any], chosen: Sequence[RoleExamples]) -> dict[str, Any]:
    """What ``--json`` prints: the model, and the chosen examples as in profile.json."""
    entry = examples_entry(chosen) or {}
    licences = _licences(document, chosen)
    return {
        "attnviz": document.get("attnviz"), "model": document["model"],
        "examples": entry | ({"licences": licences} if licences else {}),
    }  # fmt: skip


def _licences(document: dict[str, Any], chosen: Sequence[RoleExamples]) -> dict[str, str]:
    """Those of the corpora of the chosen examples, where they are known."""
    known = document["examples"].get("licences") or {}
    corpora = {example.corpus for each in chosen for some in each.groups.values() for example in some}
    return {corpus: str(known[corpus]) for corpus in sorted(corpora) if corpus in known}


class NamedExample(NamedTuple):
    """An example, and which it is: ``best 1``, ``decile 5``."""

    name: str
    example: Example


def named_examples(of: RoleExamples) -> list[NamedExample]:
    """All examples of a role, numbered within their groups."""
    return [
        NamedExample(f"{group.removesuffix('s')} {number}", example)
        for group, some in of.groups.items()
        for number, example in enumerate(some, 1)
    ]


def example_tables(document: dict[str, Any], chosen: Sequence[RoleExamples], width: int) -> Iterator[RenderableType]:
    """A table for each role of each head, then how to read them, and licences."""
    roles = {(role.get("id"), role.get("role")): role for role in document["roles"] if isinstance(role, dict)}
    columns: list[Column[NamedExample]] = [
        Column("Example", lambda row: row.name, left=True),
        Column("Weight", lambda row: row.example.weight),
        Column("Right one", lambda row: "" if row.example.hit else row.example.gold_weight),
        Column("Sentence", lambda row: _sentence(row.example), left=True, least=20, fold=True),
    ]
    for each in chosen:
        title = _title(each, roles.get((str(each.id), each.role)))
        yield column_table(title, columns, named_examples(each), width=width)
    licences = _licences(document, chosen)
    yield notes(
        "Best: hits of most weight. Decile: by the weight of the right one, in a random sample. Failure: misses of "
        "most weight. [query] attends most to {key}, with this weight; (the right one) where that is another.",
        *(f"{visible(corpus)}: {visible(licence)}." for corpus, licence in licences.items()),
    )


def _title(examples: RoleExamples, role: dict[str, Any] | None) -> str:
    name = visible(examples.role.removeprefix(SYNTACTIC))
    arrow = ARROWS.get(examples.direction or "", "")
    if role is None or not role.get("passed"):
        told = "its best relation; it does not pass"
    else:
        told = f"score {rounded(role['score'])}, baseline {rounded(role['baseline'])}, n = {role['n']:,}"
    n = counted(sum(map(len, examples.groups.values())), "example")
    return f"{' '.join(filter(None, (str(examples.id), name, arrow)))} ({told}; {n})"


def _sentence(example: Example) -> Text:
    """The text with its pair in brackets, long ones cut around it."""
    text = Text()
    style = "bold green" if example.hit else "bold red"
    for part in parts_of_text(example, LONGEST):
        shown = visible(part.text)
        for end in sorted(part.ends):
            shown = f"{_BRACKETS[end][0]}{shown}{_BRACKETS[end][1]}"
        text.append("" if part.joined or not text else " ")
        text.append(shown, style=style if part.ends else None)
    return text
