"""Wang et al. 2022: the heads that find the indirect object (IOI), by path patching, attention and copying."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.claims import HOLDS, CheckedClaim
from attnviz.commands.papers.table import PAPERS, PaperRun, PaperTable, Rows
from attnviz.errors import CheckpointError
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.indirect_objects import IndirectObjects, names_of_one_token, prompts
from attnviz.measures.intervals import Simultaneous, of_proportion
from attnviz.measures.paths import RUN, Receiver, why_no_paths
from attnviz.measures.prompt_pairs import DIFFERENCE, pair_samples, paired_inputs
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.profiles.published import heads_of_paper
from attnviz.wording import counted

PAPER = "wang-2022"
WORDS = PAPERS[PAPER]  # of the prompts

MOST_PROMPTS = 128  # that are made (the paper: 100,000)
LEAST_NAMES = 10  # names of one token that it takes
COPIED = 0.5  # share of names that a mover copies
CANDIDATES = 10  # heads that are tried for a role, those of the largest effect first


@dataclass(frozen=True)
class _Role:
    """A role of the paper's circuit, with the paper's numbers."""

    name: str
    most: int  # heads that are named at most: as many as the paper has
    share: str = "share of the difference"
    attends: tuple[str, str] = ("IO", "S")  # to what, rather than to what
    attention: str = ""
    copied: str = ""  # '' where it copies nothing
    sign: int = 1  # -1 where it writes against what it copies


MOVER = _Role("name mover", 3, attention="0.59", copied="above 0.95")
NEGATIVE = _Role("negative name mover", 2, copied="0.98", sign=-1)
INHIBITION = _Role("S-inhibition", 4, "share by name movers' queries", ("S2", "IO"), "0.51")
ROLES = MOVER, NEGATIVE, INHIBITION


class _Circuit:
    """What the model does, and beside it its untrained copy, and the rows of the heads that may have a role."""

    def __init__(self, run: PaperRun) -> None:
        self.run, model, options = run, run.checkpoint, run.options
        self.n = min(options["limit"] or MOST_PROMPTS, MOST_PROMPTS)
        inputs = paired_inputs(model, prompts(model, WORDS, self.n, options["seed"]), DIFFERENCE)
        inputs = inputs._replace(positions=[(prompt.positions, prompt.positions) for prompt in inputs.clean])
        whole = type(model.whole)  # its unembedding is initialised, too: its logits count here
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options["seed"])
            fresh: Any = whole(model.config)  # type: ignore[misc]
        copy = from_loaded(fresh.to(model.device, model.dtype).eval(), model.tokenizer)
        self.trained, self.untrained = self.models = [
            IndirectObjects(checkpoint, inputs, options["batch_size"], options["progress"])
            for checkpoint in (model, copy)
        ]
        self.samples = pair_samples(inputs, options["seed"])
        self.named = {(head.role, head.id) for head in heads_of_paper(PAPER, model, (PAPER,))}

    def claimed(self, what: str, measured: Simultaneous, number: int, **row: Any) -> CheckedClaim:
        return self.run.claimed(what, measured.estimates[number], self.n, interval=measured.interval(number), **row)

    def _of_head(
        self, role: _Role, id: HeadId, shares: Simultaneous, weights: Simultaneous, control: float
    ) -> list[CheckedClaim]:
        number, (end, other) = self.trained.heads.index(id), role.attends
        named = "named in the paper" if (role.name, id) in self.named else ""
        row: dict[str, Any] = {"at_least": 0.0, "untrained": control, "published": named}
        rows = [self.claimed(f"{role.name}: {role.share}", shares, number, head=id, **row)]
        row = {"untrained": self.untrained.attention[end][:, *id].mean(), "published": role.attention}
        row["baseline"] = self.trained.attention[other][:, *id].mean()
        rows.append(self.claimed(f"{role.name}: attention to {end}", weights, number, head=id, **row))
        if role.copied:
            score, copied = (model.copy_score(id, role.sign) for model in self.models)
            row = {"at_least": COPIED, "untrained": copied, "published": role.copied}
            row["interval"] = of_proportion(score, self.n, len(self.trained.heads))
            rows.append(self.run.claimed(f"{role.name}: copy score", score, self.n, head=id, **row))
        return rows

    def of_role(self, role: _Role, falls: Tensor, control_falls: Tensor) -> Generator[CheckedClaim, None, list[HeadId]]:
        """The rows of the heads that have a role, or else of the best one; returns these heads."""
        trained = self.trained
        shares = self.samples.ratios(falls.T, trained.differences[:, None])
        attended = trained.attention[role.attends[0]]
        weights = self.samples.means(torch.stack([attended[:, *id] for id in trained.heads], 1))
        control = float(control_falls.mean(-1).max() / trained.differences.mean().abs())
        with_role, tried = list[HeadId](), dict[HeadId, list[CheckedClaim]]()
        ranked = [trained.heads[number] for number in shares.estimates.argsort(descending=True).tolist()]
        for id in ranked[:CANDIDATES]:
            tried[id] = self._of_head(role, id, shares, weights, control)
            if len(with_role) == role.most or tried[id][0].verdict != HOLDS:
                break
            if all(row.verdict == HOLDS for row in tried[id]):
                with_role.append(id)
        shown = [*(with_role or ranked[:1]), *(id for id in ranked if (role.name, id) in self.named)]
        for id in dict.fromkeys(shown):
            yield from tried.get(id) or self._of_head(role, id, shares, weights, control)
        return with_role


def _measure(run: PaperRun) -> Rows:
    circuit = _Circuit(run)
    trained, untrained = circuit.models
    means, mean = circuit.samples.means(trained.differences[:, None]), untrained.differences.mean()
    task = circuit.claimed("logit(IO) - logit(S)", means, 0, at_least=0.0, untrained=mean, published="3.56")
    yield task
    share, control = (float((model.differences > 0).double().mean()) for model in circuit.models)
    yield run.reported("prompts with IO above S", share, circuit.n, untrained=control, published="0.993")
    if task.verdict != HOLDS:
        yield from (run.undecided(role.name, "the model does not do the task") for role in ROLES)
        return
    movers = yield from circuit.of_role(MOVER, trained.falls, untrained.falls)
    yield from circuit.of_role(NEGATIVE, -trained.falls, -untrained.falls)
    receivers = [Receiver(id, "q", RUN) for id in movers if id.layer > 0]
    if not receivers:
        yield run.undecided(INHIBITION.name, "no name mover was found")
        return
    falls, control_falls = (torch.stack([*map(model.falls_to, receivers)]).mean(0) for model in circuit.models)
    yield from circuit.of_role(INHIBITION, falls, control_falls)


def _refuse(checkpoint: Checkpoint) -> None:
    if checkpoint.language_head is None or not checkpoint.architecture.causal or why_no_paths(checkpoint):
        raise CheckpointError(f"{PAPER} follows paths to the next name: expected a decoder, such as gpt2.")
    if checkpoint.architecture.gated:
        raise CheckpointError(f"{PAPER} reads what heads copy from weights alone; this model has gates.")
    n_names = len(names_of_one_token(checkpoint, WORDS["names"]))
    if n_names < LEAST_NAMES:
        raise CheckpointError(
            f"{PAPER} takes {LEAST_NAMES} names that are one token each with the space before them, such as ' Mary'; "
            f"this tokenizer has {counted(n_names, 'such name')}."
        )


TABLE = PaperTable(
    PAPER,
    {"MOST_PROMPTS": MOST_PROMPTS, "COPIED": COPIED},
    roles=tuple(role.name for role in ROLES),
    takes=("limit",),
    needs_corpus=False,
    least=ENOUGH_TEXTS,
    refuse=_refuse,
    measure=_measure,
)
