"""Roles, examples and pictures of a stored profile: ``attnviz profile --show``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar

from rich.console import RenderableType
from rich.text import Text

from attnviz.arguments import relation_named
from attnviz.commands.profile.measure import trees_in_words
from attnviz.commands.profile.report import ROLE_FIELDS, SPEC, by_head
from attnviz.errors import UsageError
from attnviz.judge.roles import Role
from attnviz.models.checkpoint import short_name
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.present.fields import Field, Table, listed_of
from attnviz.present.kv_heads import KV_HEAD
from attnviz.present.paper_tables import paper_table
from attnviz.present.published import role_name, role_numbers
from attnviz.present.result import Result
from attnviz.present.tables import notes, spaced
from attnviz.present.view import ViewOptions
from attnviz.profiles.examples import Example, RoleExamples, examples_entry, parts_of_text
from attnviz.profiles.parts import SYNTACTIC, measured_on
from attnviz.profiles.store import JudgedRelation, StoredProfile
from attnviz.wording import visible

LONGEST = 60  # most words of a text shown
_OfHead = TypeVar("_OfHead", Role, RoleExamples)
_BRACKETS = {"query": "[]", "key": "{}", "gold": "()"}
EXAMPLES = 2  # hits, and failures, shown of a role of a head, where no number is given
ROLES = "roles"  # the name that shows the roles of all heads, not examples


def chosen_examples(profile: StoredProfile, wanted: Sequence[str]) -> tuple[RoleExamples, ...]:
    """Select examples by heads, by roles or relations, or by both; UsageError where there are none.

    ``wanted``: ``L2H8``, ``L2``, ``L0-3``; ``obj``, ``sink``, ``previous``, ``syntactic``, …
    """
    examples = profile.examples
    if not examples:
        raise UsageError(
            f"the profile {profile.path} has no examples: expected one of a corpus, with --examples above 0; make it "
            "again with attnviz profile CORPUS."
        )

    def rank(examples: RoleExamples) -> tuple[object, ...]:
        role = _role(profile, examples)
        return (examples.id, role is None or not role.holds, -((role and role.error_reduction) or 0.0))

    return tuple(sorted(_chosen(profile, examples, wanted, "examples"), key=rank))


def _chosen(profile: StoredProfile, every: Sequence[_OfHead], wanted: Sequence[str], what: str) -> list[_OfHead]:
    wanted = [relation_named(name) for name in wanted]
    roles = [name for name in wanted if any(name in _names(role.role) for role in every)]
    heads = select_heads([name for name in wanted if name not in roles], profile.stacks)
    of_heads = [role for role in every if role.id in heads]
    chosen = [role for role in of_heads if not roles or not _names(role.role).isdisjoint(roles)]
    if wanted and not chosen:
        known = ", ".join(sorted({role.role.removeprefix(SYNTACTIC) for role in of_heads}))
        raise UsageError(f"there are no {what} of {' '.join(wanted)}: there are those of {visible(known) or 'none'}.")
    return chosen


def _role(profile: StoredProfile, examples: RoleExamples) -> Role | None:
    return next((role for role in profile.roles.get(examples.id, ()) if role.role == examples.role), None)


def _names(role: str) -> set[str]:
    """Names that select this role: ``syntactic:obj``, ``obj``, ``syntactic``."""
    relation = role.removeprefix(SYNTACTIC)
    return {role, relation, role.removesuffix("-token"), "syntactic" if relation != role else role}


def examples_document(profile: StoredProfile, chosen: Sequence[RoleExamples]) -> dict[str, Any]:
    """The document of ``--json``: the model, and the chosen examples as in profile.json."""
    entry = examples_entry(chosen) or {}
    licences = licences_of(profile, chosen)
    if licences:
        entry["licences"] = licences
    return {"attnviz": profile.document["attnviz"], "model": profile.model, "examples": entry}


def licences_of(profile: StoredProfile, chosen: Sequence[RoleExamples]) -> dict[str, str]:
    """Licences of the corpora of the chosen examples, where known."""
    corpora = {example.corpus for role in chosen for some in role.groups.values() for example in some}
    return {corpus: profile.licences[corpus] for corpus in sorted(corpora) if corpus in profile.licences}


class NamedExample(NamedTuple):
    """An example with its name: ``best 1``, ``failure 2``."""

    name: str
    example: Example


def named_examples(of: RoleExamples, top: int = 0) -> list[NamedExample]:
    """The first ``top`` examples of each group of a role, 0 for all, numbered."""
    return [
        NamedExample(f"{group.removesuffix('s')} {number}", example)
        for group, some in of.groups.items()
        for number, example in enumerate(some[: top or None], 1)
    ]


def licence_lines(profile: StoredProfile, chosen: Sequence[RoleExamples]) -> list[str]:
    """A sentence for each corpus of the chosen examples whose licence is known."""
    return [f"{visible(corpus)}: {visible(licence)}." for corpus, licence in licences_of(profile, chosen).items()]


def example_tables(profile: StoredProfile, chosen: Sequence[RoleExamples], top: int) -> Iterator[RenderableType]:
    """A table of ``top`` hits and ``top`` failures per role and head, 0 for all; then notes and licences."""
    right_one: Field[NamedExample] = Field("Right one", lambda row: "" if row.example.hit else row.example.gold_weight)
    has_others = has_more = False
    for examples in chosen:
        rows, n = named_examples(examples, top), sum(map(len, examples.groups.values()))
        others = any(not row.example.hit and row.example.gold for row in rows)
        columns: list[Field[NamedExample]] = [
            Field("Example", "name"),
            Field("Weight", "example.weight"),
            *([right_one] if others else []),
            Field("Sentence", lambda row: sentence_of(row.example)),
        ]
        role = _role(profile, examples)
        numbers = role_numbers(role) if role and role.holds else "its best relation; it does not pass"
        name = f"{examples.id} {role_name(examples.role, examples.direction)}"
        yield Table(f"{name} ({numbers}; {listed_of(len(rows), n)} examples)", columns, rows)
        has_others, has_more = has_others or others, has_more or len(rows) < n
    another = "; (the right one) where that is another" if has_others else ""
    yield notes(
        f"{top} hits and failures of each role and head; --top 0 lists all." if has_more else "",
        "Best: hits of most weight (broad: attention spread most). Failures: misses of most weight. "
        f"[query] attends most to {{key}}, with this weight{another}.",
        *licence_lines(profile, chosen),
    )


def role_tables(profile: StoredProfile, top: int) -> Iterator[RenderableType]:
    """The roles of ``top`` heads, 0 for all, and what they were measured on."""
    roles = _roles_by_head(profile)
    control = any(role.untrained is not None for of_head in roles.values() for role in of_head)
    yield by_head(roles, top, "--json", control=control)
    yield notes(*(f"{name}: {measured_on(part)}." for name, part in profile.parts.items()))


def _roles_by_head(profile: StoredProfile) -> dict[HeadId, list[Role]]:
    return {head: list(profile.of(head)) for head in select_heads((), profile.stacks)}


def roles_document(profile: StoredProfile) -> dict[str, Any]:
    """The model, and the roles that hold, as in profile.json."""
    roles = [role for role in profile.document["roles"] if role["holds"]]
    return {"attnviz": profile.document["attnviz"], "model": profile.model, "parts": profile.parts, "roles": roles}


def role_table(entries: Sequence[dict[str, Any]]) -> Table[dict[str, Any]]:
    """Roles as in profile.json as the rows of a table."""
    return Table("", (*ROLE_FIELDS, KV_HEAD), entries, name="roles")


def paper_table_of(profile: StoredProfile, kind: str, wanted: Sequence[str] = ()) -> str:
    """The roles that hold, of these heads, roles or relations, as :func:`attnviz.present.paper_tables.paper_table`."""
    holding = [role for head in profile.roles for role in profile.of(head)]
    chosen = _chosen(profile, holding, [name for name in wanted if name != ROLES], "roles that hold")
    named = {(str(role.id), role.role) for role in chosen}
    content = roles_document(profile)
    rows = [role for role in content["roles"] if (role["id"], role["role"]) in named]
    caption = (
        f"Roles of the heads of {visible(profile.model['full_name'])} over {visible(profile.measured_by(chosen))} "
        f"(attnviz profile, version {content['attnviz']})."
    )
    return paper_table(kind, role_table(rows), SPEC.paper, caption, "tab:attnviz-profile")


def shown_profile(
    profile: StoredProfile, wanted: Sequence[str], top: int | None, table: str | None
) -> "StoredPictures":
    """Roles of all heads, a table of them for a paper, or ``top`` examples of each role of what is ``wanted``."""
    if table or wanted == [ROLES]:
        shown = paper_table_of(profile, table, wanted) if table else spaced(role_tables(profile, top or 0))
        return StoredPictures(profile, shown, roles_document(profile))
    chosen = chosen_examples(profile, wanted)
    tables = spaced(example_tables(profile, chosen, EXAMPLES if top is None else top))
    return StoredPictures(profile, tables, examples_document(profile, chosen))


@dataclass(frozen=True, repr=False, eq=False)
class StoredPictures(Result):
    """A stored profile, with what the pictures take of an :class:`attnviz.Profile`; its tables are what is printed."""

    command: ClassVar[str] = "profile"

    stored: StoredProfile
    printed: RenderableType | str
    content: dict[str, Any]  # that ``--json`` prints, where no pictures are drawn

    @property
    def checkpoint(self) -> Any:  # what pictures need of a model
        model = self.stored.model
        return SimpleNamespace(short_name=short_name([str(model.get("name"))], "part" in model))

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(role for of_head in self.stored.roles.values() for role in of_head)

    def roles_by_head(self) -> dict[HeadId, list[Role]]:
        """As :meth:`attnviz.Profile.roles_by_head`."""
        return _roles_by_head(self.stored)

    @property
    def judged_relations(self) -> Sequence[JudgedRelation]:
        return self.stored.judged_relations

    @property
    def trees(self) -> str:
        return trees_in_words(bool(self.stored.document["syntax"]["gold"]))

    def source(self, role: str = "", *more: str) -> str:
        """As :meth:`attnviz.Profile.source`, with the dates of the runs."""
        parts = [self.stored.parts["syntax"]] if role else self.stored.parts.values()
        return " · ".join([self.checkpoint.short_name, *dict.fromkeys(map(measured_on, parts)), *more])

    def table(self, _: ViewOptions) -> Table[Any]:
        """Every role that is stored."""
        return role_table(self.stored.document["roles"])

    def tables(self, _: ViewOptions) -> Any:
        """What ``--show`` prints."""
        return self.printed

    def paper_table(self, _: ViewOptions) -> str:
        """What ``--show`` prints with ``--table``."""
        return str(self.printed)

    def _document(self, figures: Sequence[str], *_: object) -> dict[str, Any]:
        return {**self.stored.document, "model": self.stored.model, "figures": list(figures)}


def sentence_of(example: Example) -> Text:
    """The text with its pair in brackets, cut around it if long."""
    text = Text()
    style = "bold green" if example.hit else "bold red"
    for part in parts_of_text(example, LONGEST):
        shown = visible(part.text)
        for end in sorted(part.ends):
            shown = f"{_BRACKETS[end][0]}{shown}{_BRACKETS[end][1]}"
        text.append("" if part.joined or not text else " ")
        text.append(shown, style=style if part.ends else None)
    return text
