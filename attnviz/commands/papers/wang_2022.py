"""Wang et al. 2022: the heads that find the indirect object (IOI), by path patching, attention and copying."""

from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.claims import HOLDS, CheckedClaim
from attnviz.commands.papers.table import PAPERS, PaperRun, PaperTable, Rows
from attnviz.errors import CheckpointError
from attnviz.inputs.tables import PromptPair
from attnviz.measures.bootstrap import ENOUGH_TEXTS, named_generator
from attnviz.measures.indirect_objects import IndirectObjects
from attnviz.measures.intervals import Simultaneous, TextSamples, of_proportion
from attnviz.measures.paths import RUN, Receiver, why_no_paths
from attnviz.measures.prompt_pairs import DIFFERENCE, pair_samples, paired_inputs
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.profiles.published import heads_of_paper
from attnviz.wording import counted

PAPER = "wang-2022"

NAMES, PLACES, THINGS = (PAPERS[PAPER][words].split() for words in ("names", "places", "things"))

MOST_PROMPTS = 128  # that are made (the paper: 100,000)
LEAST_NAMES = 10  # names of one token that it takes
COPIED = 0.5  # share of names that a mover copies

NAME_MOVER, NEGATIVE, S_INHIBITION = "name mover", "negative name mover", "S-inhibition"
MOST = {NAME_MOVER: 3, NEGATIVE: 2, S_INHIBITION: 4}  # heads that are named at most: as many as the paper has
CANDIDATES = 10  # heads that are tried for a role, those of the largest effect first


def one_token_names(checkpoint: Checkpoint) -> list[str]:
    """The names that are one token with the space before them."""
    ids = {name: checkpoint.tokenizer(f" {name}", add_special_tokens=False)["input_ids"] for name in NAMES}
    return [name for name in NAMES if len(ids[name]) == 1 and ids[name] != [checkpoint.tokenizer.unk_token_id]]


def prompts(checkpoint: Checkpoint, n_prompts: int, seed: int) -> list[PromptPair]:
    """Sentences of both orders in turn (ABBA, BABA), and the same with three other names (ABC)."""
    names = one_token_names(checkpoint)
    generator = named_generator(f"{PAPER}:{seed}")
    pairs = list[PromptPair]()
    for number in range(n_prompts):
        drawn = [names[index] for index in torch.randperm(len(names), generator=generator)[:5].tolist()]
        template, place, thing = (
            words[int(torch.randint(len(words), (), generator=generator))]
            for words in (PAPERS[PAPER]["templates"], PLACES, THINGS)
        )
        answer, subject, *others = drawn
        first, second = drawn[:2] if number % 2 == 0 else (subject, answer)
        clean = template.format(first, second, subject, place=place, thing=thing)
        corrupt = template.format(*others, place=place, thing=thing)
        pairs.append(PromptPair(clean, corrupt, f" {answer}", f" {subject}"))
    return pairs


@dataclass(frozen=True)
class _Roles:
    """The rows of the heads that may have a role."""

    run: PaperRun
    trained: IndirectObjects
    untrained: IndirectObjects
    samples: TextSamples
    n: int  # prompts

    @cached_property
    def named(self) -> set[tuple[str, HeadId]]:
        """The roles and heads of the paper."""
        return {(head.role, head.id) for head in heads_of_paper(PAPER, self.run.checkpoint, (PAPER,))}

    def claimed(self, what: str, measured: Simultaneous, number: int, **row: Any) -> CheckedClaim:
        return self.run.claimed(what, measured.estimates[number], self.n, interval=measured.interval(number), **row)

    def _of_head(
        self, role: str, id: HeadId, shares: Simultaneous, weights: Simultaneous, control: float
    ) -> list[CheckedClaim]:
        trained, untrained = self.trained, self.untrained
        number = trained.heads.index(id)
        share, end, other = "share of the difference", "IO", "S"
        if role == S_INHIBITION:
            share, end, other = "share by name movers' queries", "S2", "IO"
        row: dict[str, Any] = {"at_least": 0.0, "untrained": control}
        row["published"] = "named in the paper" if (role, id) in self.named else ""
        rows = [self.claimed(f"{role}: {share}", shares, number, head=id, **row)]
        row = {"published": {NAME_MOVER: "0.59", S_INHIBITION: "0.51"}.get(role, "")}
        row["baseline"] = trained.attention[other][:, *id].mean()
        row["untrained"] = untrained.attention[end][:, *id].mean()
        rows.append(self.claimed(f"{role}: attention to {end}", weights, number, head=id, **row))
        if role != S_INHIBITION:
            score, copied = (model.copy_score(id, -1 if role == NEGATIVE else 1) for model in (trained, untrained))
            row = {"untrained": copied, "published": "0.98" if role == NEGATIVE else "above 0.95", "at_least": COPIED}
            interval = of_proportion(score, self.n, len(trained.heads))
            rows.append(self.run.claimed(f"{role}: copy score", score, self.n, head=id, interval=interval, **row))
        return rows

    def of_role(self, role: str, falls: Tensor, control_falls: Tensor) -> Generator[CheckedClaim, None, list[HeadId]]:
        """The rows of the heads that have a role, or else of the best one; returns these heads."""
        trained = self.trained
        shares = self.samples.ratios(falls.T, trained.differences[:, None])
        attended = trained.attention["S2" if role == S_INHIBITION else "IO"]
        weights = self.samples.means(torch.stack([attended[:, *id] for id in trained.heads], 1))
        control = float(control_falls.mean(-1).max() / trained.differences.mean().abs())
        with_role, tried = list[HeadId](), dict[HeadId, list[CheckedClaim]]()
        ranked = [trained.heads[number] for number in shares.estimates.argsort(descending=True).tolist()]
        for id in ranked[:CANDIDATES]:
            tried[id] = self._of_head(role, id, shares, weights, control)
            if len(with_role) == MOST[role] or tried[id][0].verdict != HOLDS:
                break
            if all(row.verdict == HOLDS for row in tried[id]):
                with_role.append(id)
        shown = [*(with_role or ranked[:1]), *(id for id in ranked if (role, id) in self.named)]
        for id in dict.fromkeys(shown):
            yield from tried.get(id) or self._of_head(role, id, shares, weights, control)
        return with_role


def _measure(run: PaperRun) -> Rows:
    """The rows of the model, and beside it of its untrained copy."""
    model, options = run.checkpoint, run.options
    pairs = prompts(model, min(options["limit"] or MOST_PROMPTS, MOST_PROMPTS), options["seed"])
    inputs = paired_inputs(model, pairs, DIFFERENCE)
    inputs = inputs._replace(positions=[(prompt.positions, prompt.positions) for prompt in inputs.clean])
    whole = type(model.whole)  # its unembedding is initialised, too: its logits count here
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options["seed"])
        fresh: Any = whole(model.config)  # type: ignore[misc]
    copy = from_loaded(fresh.to(model.device, model.dtype).eval(), model.tokenizer)
    trained, untrained = both = [
        IndirectObjects(checkpoint, inputs, options["batch_size"], options["progress"]) for checkpoint in (model, copy)
    ]
    samples = pair_samples(inputs, options["seed"])
    rows = _Roles(run, trained, untrained, samples, len(pairs))
    means, mean = samples.means(trained.differences[:, None]), untrained.differences.mean()
    task = rows.claimed("logit(IO) - logit(S)", means, 0, at_least=0.0, untrained=mean, published="3.56")
    yield task
    share, control = (float((model.differences > 0).double().mean()) for model in both)
    yield run.reported("prompts with IO above S", share, len(pairs), untrained=control, published="0.993")
    if task.verdict != HOLDS:
        yield from (run.undecided(role, "the model does not do the task") for role in MOST)
        return
    movers = yield from rows.of_role(NAME_MOVER, trained.falls, untrained.falls)
    yield from rows.of_role(NEGATIVE, -trained.falls, -untrained.falls)
    receivers = [Receiver(id, "q", RUN) for id in movers if id.layer > 0]
    if not receivers:
        yield run.undecided(S_INHIBITION, "no name mover was found")
        return
    falls, control_falls = (torch.stack([*map(model.falls_to, receivers)]).mean(0) for model in both)
    yield from rows.of_role(S_INHIBITION, falls, control_falls)


def _refuse(checkpoint: Checkpoint) -> None:
    if checkpoint.language_head is None or not checkpoint.architecture.causal or why_no_paths(checkpoint):
        raise CheckpointError(f"{PAPER} follows paths to the next name: expected a decoder, such as gpt2.")
    if checkpoint.architecture.gated:
        raise CheckpointError(f"{PAPER} reads what heads copy from weights alone; this model has gates.")
    n_names = len(one_token_names(checkpoint))
    if n_names < LEAST_NAMES:
        raise CheckpointError(
            f"{PAPER} takes {LEAST_NAMES} names that are one token each with the space before them, such as ' Mary'; "
            f"this tokenizer has {counted(n_names, 'such name')}."
        )


TABLE = PaperTable(
    PAPER,
    {"MOST_PROMPTS": MOST_PROMPTS, "COPIED": COPIED},
    roles=(NAME_MOVER, NEGATIVE, S_INHIBITION),
    takes=("limit",),
    needs_corpus=False,
    least=ENOUGH_TEXTS,
    refuse=_refuse,
    measure=_measure,
)
