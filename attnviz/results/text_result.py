"""Results of one text, and results that have an entry a head: what they answer in the same way."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from attnviz.model.head_ids import HeadId, head_named, select_heads
from attnviz.model.wording import visible
from attnviz.results.facts import Facts
from attnviz.results.result import Result

if TYPE_CHECKING:
    from attnviz.model.checkpoint import Checkpoint
    from attnviz.model.tokens import Tokens


class _Entry(Protocol):
    @property
    def id(self) -> HeadId: ...


E = TypeVar("E", bound=_Entry)


@dataclass(frozen=True, repr=False)
class TextResult(Result):
    """What a command measured on one text, or a pair of texts.

    Attributes:
        text, pair: as given.
        checkpoint: the model.
        tokens: the text as the model read it.
    """

    text: str
    pair: str | None
    checkpoint: "Checkpoint"
    tokens: "Tokens"

    @property
    def facts(self) -> Facts:
        """What every figure, caption and table must say of it."""
        texts = tuple(text for text in (self.text, self.pair) if text is not None)
        return Facts(visible(self.checkpoint.short_name), texts, len(self.tokens))

    @property
    def pair_note(self) -> str:
        """How the pair reached a model without token types; see :attr:`attnviz.model.tokens.Tokens.pair_note`."""
        return self.tokens.pair_note

    @property
    def sinks(self) -> str:
        """The sink positions of this text, in words; empty where it has none."""
        tokens = self.tokens
        kinds = ["special tokens"] * any(tokens.special)
        kinds += [f"the first {self.facts.unit}"] * (tokens.sink[0] and not tokens.special[0])
        return " and ".join(kinds)


class OfHeads(Generic[E]):
    """A result with one entry a head, in :attr:`heads`; ``checkpoint`` is the model that they are of."""

    heads: tuple[E, ...]
    checkpoint: "Checkpoint"

    def select(self, selections: str | HeadId | Iterable[str | HeadId] = ()) -> list[E]:
        """The entries of the heads that the selections name (``L2H8``, ``L2``, ``L*H8``, …), in the order of ``heads``.

        Without a selection all; one may stand without a list around it.

        Raises:
            UsageError: a selection cannot be read or names what the model lacks.
        """
        model = self.checkpoint
        chosen = set(select_heads(selections, model.n_layers, model.n_heads, model.stacks))
        return [entry for entry in self.heads if entry.id in chosen]

    def head(self, head: str | HeadId) -> E:
        """The entry of one head, by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``.

        Raises:
            UsageError: the model has no such head.
        """
        wanted = head_named(head, self.checkpoint.n_layers, self.checkpoint.n_heads, stacks=self.checkpoint.stacks)
        return next(entry for entry in self.heads if entry.id == wanted)
