"""What a paper's table is declared with, and what its measurement is given."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from attnviz.commands.claims import CONTROLS, REPORTED, UNDECIDED, CheckedClaim, Claim, decided
from attnviz.commands.profile.measure import CONTROL_TEXTS, PARTS, Profile, profile_heads, untrained_copy
from attnviz.errors import CorpusError, UsageError
from attnviz.inputs.batches import Batch
from attnviz.inputs.frequencies import read_frequencies, token_counts
from attnviz.inputs.prompt import Text
from attnviz.inputs.reading import Corpus, open_corpora, ready
from attnviz.inputs.tables import Columns
from attnviz.inputs.text import rendered
from attnviz.judge.roles import MIN_TEXTS_SHARES
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.intervals import of_samples
from attnviz.measures.measure import Measure
from attnviz.measures.tallies import batch_weights, counting
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.progress import with_suffix
from attnviz.run.corpus import CorpusLoop
from attnviz.wording import counted

PAPERS: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "data" / "papers.toml").read_text(encoding="utf-8"))

Rows = Iterator[CheckedClaim]  # of a paper's table

# options of attnviz.check: which texts of a corpus are read, and those of any run over texts
OF_TEXTS = ("limit", "text_column", "pair_column")
OF_RUN = (*OF_TEXTS, "batch_size", "seed", "progress", "warn")


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper that ``check --published`` measures."""

    name: str  # as typed: gu-2024
    numbers: Mapping[str, object]  # which stand for names in braces of its :attr:`words`
    measure: "Callable[[PaperRun], Rows]"
    needs_corpus: bool = True
    least: int = 0  # texts, or prompts, below which no row is decided
    refuse: Callable[[Checkpoint], None] = lambda _: None  # raises an AttnvizError for a model that cannot be measured
    takes: tuple[str, ...] = OF_TEXTS  # options over texts that change what is measured
    roles: tuple[str, ...] = ()  # of heads that the paper names: measured here, so that they are no claims beside it

    @property
    def words(self) -> dict[str, str]:
        """Those of data/papers.toml, sentences without a stop.

        ``cited``: authors, year and title. ``data``: what the paper measured, and where attnviz differs. ``metric`` and
        ``threshold``.
        """
        keys = "cited", "data", "metric", "threshold"
        return {key: PAPERS[self.name][key].format_map(self.numbers) for key in keys}

    def check_limit(self, limit: int | None, n_corpora: int) -> None:
        """Raise UsageError where a limit leaves too few texts for any row."""
        most = (limit or 0) * (n_corpora if self.needs_corpus else 1)
        if 0 < most < self.least:
            raise UsageError(
                f"{self.name} decides nothing on fewer than {self.least} texts, and --limit (limit=...) leaves {most}: "
                "raise it, or leave it out."
            )


def profiled(checkpoint: Checkpoint, corpus: Any, repeats: bool, options: Mapping[str, Any]) -> Profile:
    """The roles of a model over a corpus, with or without random repeats, by these options of attnviz.check."""
    taken: Any = {name: options[name] for name in (*OF_RUN, "frequencies")}
    profile = profile_heads(checkpoint, corpus, repeats=repeats, examples=0, **taken)
    assert profile is not None  # there is one process
    return profile


@dataclass(frozen=True)
class PaperRun:
    """The model and the texts on which a table is measured."""

    table: PaperTable
    checkpoint: Checkpoint  # of an encoder-decoder the encoder
    corpora: tuple[Path, ...]
    texts: Any  # what the corpora are of
    options: Mapping[str, Any]  # those of attnviz.check, by name

    @cached_property
    def untrained(self) -> Checkpoint:
        """The control: the same architecture, freshly initialised."""
        return untrained_copy(self.checkpoint, self.options["seed"])

    @property
    def models(self) -> tuple[Checkpoint, Checkpoint]:
        return self.checkpoint, self.untrained

    def head(self, layer: int, head: int) -> HeadId:
        """A measured head by its place."""
        return HeadId(self.checkpoint.layers[layer], head)

    def token_counts(self) -> Tensor:
        """How often each vocabulary entry is in the texts, or by ``frequencies``, [vocabulary]."""
        listed = read_frequencies(self.options["frequencies"])
        return token_counts(self.checkpoint, self.opened(), self.options["limit"], listed)

    def opened(self, *refused: str) -> tuple[Corpus, ...]:
        """The corpora; ``refused`` are kinds that they may not be of."""
        columns = Columns(self.options["text_column"], self.options["pair_column"])
        return open_corpora(self.texts, columns, refused)

    def over_texts(
        self, checkpoint: Checkpoint, *tallies: Measure, prepared: Callable[[Text], Text | None] | None = None
    ) -> int:
        """Count all texts in ``tallies``, of the untrained copy at most :data:`CONTROL_TEXTS` a corpus.

        ``prepared`` gives each text as it is measured, None to leave it out; all texts are then read for the copy, too.
        Returns the number of texts measured; CorpusError where that is 0.
        """
        options = self.options
        seed, limit = options["seed"], options["limit"]
        part = PARTS[0]
        if checkpoint is not self.checkpoint:
            part = PARTS[1]
            if prepared is None:
                limit = min(CONTROL_TEXTS, limit or CONTROL_TEXTS)
        loop = CorpusLoop(
            checkpoint=checkpoint,
            corpora=self.opened(),
            limit=limit,
            batch_size=options["batch_size"],
            seed=seed,
            progress=with_suffix(part, options["progress"]),
            warn=options["warn"],
        )

        def count(number: int, batch: Batch) -> None:
            with counting(tallies, batch, batch_weights(seed, batch, number)) as add:
                loop.attention.run(batch, add)

        loop.measure({}, count, prepared or (lambda text: ready(rendered(text, checkpoint), None)))
        n_texts = sum(corpus.texts for corpus in loop.measured)
        if not n_texts:
            names = ", ".join(map(str, self.corpora))
            raise CorpusError(
                f"no text of {names} could be measured. {self.table.name} takes {self.table.words['data']}."
            )
        return n_texts

    def reported(
        self,
        what: str,
        value: float | None = None,
        n: int | None = None,
        *,
        head: HeadId | None = None,
        published: str = "",
        at_least: float | None = None,
        untrained: float | None = None,
    ) -> CheckedClaim:
        """A number of which nothing is claimed, beside the paper's and that of the untrained copy."""
        claim = Claim(
            place=self.table.name,
            kind="table",
            what=what,
            head="" if head is None else str(head),
            corpus=self.corpora if self.table.needs_corpus else (),
            at_least=at_least,
            published=f"({published})" if published else "",
        )
        return CheckedClaim(claim, REPORTED, value, n, untrained=untrained)

    def undecided(self, what: str, why: str) -> CheckedClaim:
        """A row that cannot be measured here, and why."""
        return replace(self.reported(what), verdict=UNDECIDED, reason=why)

    def claimed(
        self,
        what: str,
        value: float | Tensor,
        n: int,
        *,
        head: HeadId | None = None,
        published: str = "",
        at_least: float | None = None,
        few: str = "",
        **evidence: Any,
    ) -> CheckedClaim:
        """A claim of the paper: it holds where all of the interval is at the threshold and above both controls.

        ``at_least`` is the threshold, ``few`` why nothing can be decided; ``evidence`` has ``untrained``, the same
        number of the untrained copy, ``baseline``, that of another control, and the ``interval`` over texts.
        """
        evidence |= {name: float(evidence[name]) for name in CONTROLS if evidence.get(name) is not None}
        claim = self.reported(what, head=head, published=published, at_least=at_least).claim
        return decided(claim, float(value), n, few=few, controlled=True, **evidence)


def too_few(n_texts: int, least: int = ENOUGH_TEXTS) -> str:
    """``few`` of :meth:`PaperRun.claimed`: why so many texts decide nothing; '' where they do."""
    return "" if n_texts >= least else f"{counted(n_texts, 'text')}, of {least} at least"


def over_texts_evidence(samples: Tensor, n_texts: int) -> dict[str, Any]:
    """``interval`` and ``few`` of :meth:`PaperRun.claimed`, of a share over texts.

    ``samples`` are its bootstrap samples, [1 + replicates], the first of which is the share itself.
    """
    if n_texts < MIN_TEXTS_SHARES:
        return {"few": too_few(n_texts, MIN_TEXTS_SHARES)}
    return {"interval": of_samples(samples, n_texts)}
