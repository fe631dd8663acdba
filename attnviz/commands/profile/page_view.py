"""The view ``page`` of ``attnviz profile``: roles and relations as tables that sort, heads as a scatter."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from attnviz.commands.profile.examples import DECILES
from attnviz.commands.profile.exports import statistic_entries
from attnviz.commands.profile.measure import Profile
from attnviz.commands.profile.report import ROLE_FIELDS, relation_fields
from attnviz.commands.profile.show import LONGEST, named_examples
from attnviz.figures.families import UNNAMED, family_of_label
from attnviz.judge.roles import Role, role_key
from attnviz.measures.chats import SHARE
from attnviz.models.head_ids import HeadId
from attnviz.page.page import colours_entry, families_entry, label_entry, short_float
from attnviz.present.fields import pick
from attnviz.present.figure_context import caption_of
from attnviz.present.published import DESCRIBING, role_name, role_numbers
from attnviz.present.tables import page_table, verification_line
from attnviz.present.view import ViewOptions
from attnviz.profiles.examples import Example, RoleExamples, Unit, parts_of_text
from attnviz.wording import counted, visible


def page_data(profile: Profile, _: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``, without patterns of single texts."""
    model = profile.checkpoint
    of_heads = profile.roles_by_head()
    telling = min(of_heads, key=lambda head: role_key(of_heads[head][0]) if of_heads[head] else (math.inf,))
    judged = {(role.id, role.role): role for role in profile.roles}
    notes = [
        "A head's label is its clearest role: that of the largest error reduction among those it has. Roles overlap; "
        "the table has all, profile.json every score."
    ]
    if profile.relations is not None:
        notes.append(f"Dependency relations rest on {profile.trees}.")
    sample = f" on a sample of {counted(profile.texts_verified, 'text')}"
    options = [*model.model_options, *(["--seed", str(profile.seed)] if profile.seed else [])]
    texts = [str(count.corpus.path) for count in profile.corpora if count.corpus.content is None]
    data = {
        "command": "profile",
        "title": profile.source(),
        "caption": caption_of(f"Interactive page of the roles of {counted(len(of_heads), 'head')}, {profile.source()}"),
        "verification": verification_line(profile.verification, model, sample=sample).plain,
        "notes": notes,
        "sides": [],
        "axes": [],
        "end": 1,
        "rows": [HeadId(layer, 0).layer_name for layer in model.layers],
        "columns": model.n_heads,
        "statistics": list(statistic_entries(profile)),
        "heads": [_entry(head, roles) for head, roles in of_heads.items()],
        "patterns": [],
        "dropped": "",
        "colours": colours_entry(),
        "families": families_entry(),
        "command_line": {"program": ["profile"], "texts": texts, "options": options},
        "start": {"head": str(telling), "scale": "shared", "drop": False, "token": []},
        "tables": list(_tables(profile)),
        "examples": [
            *(sentences_entry(role, judged[role.id, role.role]) for role in profile.examples),
            *(_by_decile(profile, head) for head in of_heads if len(profile.texts) >= DECILES),
        ],
    }
    shares = [pair for pair in profile.chats if pair.measure == SHARE]
    if shares:  # the roles of chats, and the share of every head from one to another
        names = sorted({name for pair in shares for name in (pair.source, pair.target)})
        pairs = [
            {
                "from": names.index(pair.source),
                "to": names.index(pair.target),
                "uniform": short_float(float(pair.scores.baseline.mean())),
                "values": [short_float(value) for value in pair.scores.scores.flatten().tolist()],
            }
            for pair in shares
        ]
        data["spans"] = {"names": names, "places": [[] for _ in names], "pairs": pairs}
    return data


def _entry(head: HeadId, roles: list[Role]) -> dict[str, Any]:
    names = [role.role for role in roles] or [UNNAMED.name]
    return {
        "id": str(head),
        "row": int(head.layer),
        "column": head.head,
        **label_entry(role_name(names[0], None), names[0]),
        "kinds": list(dict.fromkeys(family_of_label(name).name for name in names)),
        "evidence": " · ".join(f"{role_name(role.role, role.direction)}, {role_numbers(role)}" for role in roles),
        "role": None,
        "patterns": [],
    }


def _tables(profile: Profile) -> Iterator[dict[str, Any]]:
    names = ("id", "role", "direction", "score", "baseline", "error_reduction", "interval", "n", "untrained")
    roles = [role for of_head in profile.roles_by_head().values() for role in of_head]
    note = f"A head may have several. Untrained: the best head of a freshly initialised copy. {DESCRIBING}"
    yield page_table(f"Roles ({len(roles)})", note, pick(ROLE_FIELDS, *names), roles, head=0)
    if profile.relations is not None:
        note = "The head that is right most often, beside the largest of its baselines."
        title = f"Relations ({len(profile.relations)})"
        yield page_table(title, note, relation_fields(profile), profile.relations, head=1)


def sentences_entry(of: RoleExamples, role: Role | None) -> dict[str, Any]:
    """``Examples`` as in ``attnviz/page/patterns.js``: sentences of one role of a head; None for numbers not kept."""
    name = role_name(of.role, of.direction)
    failed = "" if role is not None and role.holds else "does not pass"
    numbers = filter(None, (failed, "" if role is None else role_numbers(role)))
    examples = [_sentence(example_name, example, example.hit) for example_name, example in named_examples(of)]
    title = f"{name}: {', '.join(numbers)}"
    return {"head": str(of.id), "role": role_name(of.role, None), "title": title, "examples": examples}


def _sentence(name: str, example: Example, hit: bool | None) -> dict[str, Any]:
    right = None if example.hit else short_float(example.gold_weight)
    weight, parts = short_float(example.weight), _runs(example)
    return {"name": name, "hit": hit, "weight": weight, "right": right, "parts": parts}


def _by_decile(profile: Profile, head: HeadId) -> dict[str, Any]:
    """The text in the middle of each decile of a head's largest weight from one content token to another."""
    found = [(text, *text.strongest(head, torch.tensor(text.item.sink))) for text in profile.texts]
    found.sort(key=lambda text: -text[1])
    examples = []
    for decile in range(DECILES):
        text, weight, *pair = found[(2 * decile + 1) * len(found) // (2 * DECILES)]
        source, offsets = text.item.source, text.item.offsets
        query, key = (Unit(text.item.pieces[place], *offsets[place]) for place in pair)
        example = Example(text.corpus, source.number, source.text, query, key, weight, True, None, None)
        examples.append(_sentence(f"decile {DECILES - decile}", example, None))
    role = "all texts, by decile"
    return {"head": str(head), "role": role, "title": f"{role} of its largest weight", "examples": examples}


def _runs(example: Example) -> list[list[str]]:
    """The text of an example as runs of words; those of its pair apart, with their part in it."""
    runs: list[list[str]] = []
    for part in parts_of_text(example, LONGEST):
        space = "" if part.joined or not runs else " "
        if part.ends:
            runs += [[space, ""]] if space else []
            runs.append([visible(part.text), " ".join(sorted(part.ends))])
        elif runs and not runs[-1][1]:
            runs[-1][0] += space + visible(part.text)
        else:
            runs.append([space + visible(part.text), ""])
    return runs
