"""Heads that papers name in public models, as published; nothing of it is measured here."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from attnviz.arguments import is_there, one_of
from attnviz.errors import UsageError
from attnviz.language.syntax import DIRECTIONS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId

# From relations of Stanford Dependencies, used by Clark et al. 2019, to those of Universal Dependencies. A preposition
# is the head of its object there and its dependent here, so that ``pobj`` is ``case`` reversed.
_UNIVERSAL = {
    "dobj": "obj",
    "nn": "compound",
    "poss": "nmod:poss",
    "auxpass": "aux:pass",
    "prt": "compound:prt",
    "pobj": "case",
}

_FILE = Path(__file__).parents[1] / "data" / "published_heads.json"


@dataclass(frozen=True)
class PublishedHead:
    """A head, from 0 whatever the paper does, and what the paper says of it."""

    id: HeadId
    role: str  # as the paper names it; of a relation with syntactic: before it
    paper: str
    year: int
    title: str
    score: float | None  # 0-1, from the paper; None where it gives none
    baseline: float | None
    direction: str | None  # of a relation, who attends to whom
    offset: int | None  # the fixed offset behind the baseline
    weaker: bool  # whether the paper puts the head in brackets
    note: str | None
    measured: str  # data and method
    by_name: bool  # whether the model was recognised only by its name; it may be fine-tuned

    @property
    def universal(self) -> tuple[str, str | None]:
        """Role and direction, a relation by its name in Universal Dependencies."""
        name = self.role.removeprefix("syntactic:")
        if name == self.role or name not in _UNIVERSAL:
            return self.role, self.direction
        direction = self.direction
        if name == "pobj" and direction is not None:
            direction = DIRECTIONS[1 - DIRECTIONS.index(direction)]
        return f"syntactic:{_UNIVERSAL[name]}", direction


def published_heads(checkpoint: Checkpoint) -> tuple[PublishedHead, ...]:
    """The heads that papers name in this model; none for a model of another name or shape.

    Its name is a hub id (any case), or a folder whose last part is the model's name. A model that is not from the hub
    is recognised by its name alone.
    """
    name, from_hub = checkpoint.name, checkpoint.revision is not None
    for model in filter(partial(_has_shape, checkpoint), _models()):
        is_folder = not from_hub and is_there(name, Path.is_dir)
        if name.casefold() in model["ids"] or (is_folder and Path(name).resolve().name.casefold() == model["name"]):
            return _heads(model, not from_hub)
    return ()


def _has_shape(checkpoint: Checkpoint, model: dict[str, Any]) -> bool:
    shape = checkpoint.architecture.name, checkpoint.n_layers, checkpoint.n_heads
    return shape == (model["architecture"], model["n_layers"], model["n_heads"])


def heads_of_paper(paper: str, checkpoint: Checkpoint, tables: Collection[str]) -> tuple[PublishedHead, ...]:
    """The heads that a paper (``clark-2019``) names, for any model of its shape; none for others.

    UsageError for a paper that names no heads and is not among those with ``tables``.
    """
    papers = {model["paper"]["cited"].replace(" et al. ", "-").lower(): model for model in _models()}
    if paper not in papers and paper not in tables:
        known = one_of(paper, sorted({*papers, *tables}), "attnviz check --help names some")
        raise UsageError(f"no table of the paper {paper!r} is known: {known}")
    model = papers.get(paper)
    return _heads(model, True) if model and _has_shape(checkpoint, model) else ()


def _heads(model: dict[str, Any], by_name: bool) -> tuple[PublishedHead, ...]:
    paper = model["paper"]
    citation = {"year": paper["year"], "title": paper["title"], "measured": paper["measured"]}
    citation |= {"paper": paper["cited"], "by_name": by_name}
    return tuple(PublishedHead(**{**entry, **citation, "id": HeadId.parse(entry["id"])}) for entry in model["heads"])


def published_entries(heads: Iterable[PublishedHead]) -> list[dict[str, Any]]:
    """For a JSON document."""
    return [{**asdict(head), "id": str(head.id), "universal": list(head.universal)} for head in heads]


@cache
def _models() -> Any:
    return json.loads(_FILE.read_text(encoding="utf-8"))["models"]
