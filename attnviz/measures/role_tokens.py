"""The tokens of a role's queries, each beside a matched one: whether what a head tracks also needs it.

Of a relation, each measured token of a word that attends is matched with the nearest other one of its text that has a
letter or digit, the earlier of two. Of random tokens that are repeated, each token of the second copy is matched with
the same token of the first. A text without both is in neither.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.arguments import as_found, did_you_mean, relation_named
from attnviz.errors import TextError, UsageError
from attnviz.inputs.prompt import Prompt, Text
from attnviz.inputs.reading import Parser, ready
from attnviz.inputs.refusals import refuse
from attnviz.language.parsers import load_parser
from attnviz.language.syntax import DIRECTIONS
from attnviz.language.universal import RELATIONS
from attnviz.measures.predictions import ANSWER, CLASSES, FUNCTION
from attnviz.measures.relations import RelatedWords
from attnviz.measures.repeats import repeated_tokens
from attnviz.models.checkpoint import Checkpoint
from attnviz.run.passes import ModelInput

_SYNTACTIC = "syntactic:"
REPEATED = "repeated tokens"  # the name of what is measured on random tokens: their second copy, beside the first


class RoleTokens(NamedTuple):
    """The tokens of a role's queries: a relation in one direction, or :data:`REPEATED`."""

    name: str
    direction: str | None

    @property
    def role(self) -> str:
        """The name that a profile has for it: ``syntactic:obj``."""
        return f"{_SYNTACTIC}{self.name}" if self.direction else self.name


def role_tokens(roles: object, repeats: bool) -> list[RoleTokens]:
    """What is measured apart: of one relation, or each of several, both directions. UsageError for anything else."""
    names = [roles] if isinstance(roles, str) else roles
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"expected role as a relation such as 'obj', or a list of these, found {as_found(roles)}.")
    names = list(dict.fromkeys(relation_named(name).removeprefix(_SYNTACTIC) for name in names))
    for name in names:
        if name.partition(":")[0] not in RELATIONS:
            known = f"expected a relation, one of {', '.join(RELATIONS)}.{did_you_mean(name, RELATIONS)}"
            raise UsageError(f"unknown role {name!r}: {known}")
    refuse({"role": names, "repeats": repeats})
    if repeats:
        return [RoleTokens(REPEATED, None)]
    return [RoleTokens(name, direction) for name in names for direction in DIRECTIONS]


def texts_with_roles(checkpoint: Checkpoint, texts: Sequence[Text], kind: str, repeats: bool, seed: int) -> list[Text]:
    """The texts, parsed where they have no trees, without trees too small or large for a profile; or random ones."""
    why = {
        ANSWER: "an answer is predicted at one token of a text",
        FUNCTION: "a metric of your own is measured at one token of a text",
        **dict.fromkeys(CLASSES, "this is a classifier"),
    }.get(kind, "this is an encoder-decoder" if checkpoint.stacks else "")
    if why:
        raise UsageError(
            f"{why}: --role (role=...) and --repeats are for models that read one text and predict, or encode, its "
            "tokens."
        )
    if repeats and not checkpoint.architecture.causal:
        raise UsageError(
            "this model reads both copies of repeated tokens at once, so that neither is the first: expected --repeats "
            "(repeats=True) with a causal model, such as GPT-2."
        )
    if repeats:
        drawn = enumerate(repeated_tokens(checkpoint, seed).tolist())
        return [Text("", number=number, ids=tuple(ids)) for number, ids in drawn]
    parse = None
    if not all(text.spans for text in texts):
        pipeline = load_parser()
        if pipeline is None:
            raise UsageError(
                "the tokens of a role need a treebank (.conllu), or spaCy to parse with: pip install 'attnviz[syntax]'."
            )
        parse = Parser(pipeline)
    known = (ready(text, parse) for text in texts)
    return [text for text in known if text is not None]


def token_weights(checkpoint: Checkpoint, inputs: Sequence[ModelInput], roles: Sequence[RoleTokens]) -> list[Tensor]:
    """How often each token counts, by text, [n_tokens, 1 + 2 * n_roles]: among all, then queries and matches of roles.

    TextError where no measured token is a query of any role.
    """
    weights = list[Tensor]()
    for _, inputs_of_text in groupby(inputs, key=lambda model_input: model_input.text):
        of_text = list(inputs_of_text)
        item = of_text[0].item
        positions = [position for model_input in of_text for position in model_input.positions]
        n_target = 0 if item.source.target is None else len(item.source.target.tokens)
        counts = torch.zeros(len(item) + n_target, 1 + 2 * len(roles), dtype=torch.float64)
        counts[positions, 0] = 1
        words = RelatedWords.of_items([item])
        for number, role in enumerate(roles):
            pairs = _queries_with_matches(item, positions, words, role, checkpoint.architecture.causal)
            for side in (0, 1):
                chosen = torch.tensor([pair[side] for pair in pairs], dtype=torch.long)
                counts[:, 1 + 2 * number + side] = torch.bincount(chosen, minlength=len(counts))
        weights.append(counts)
    if roles and not any(counts[:, 1:].any() for counts in weights):
        names = " or ".join(dict.fromkeys(role.name for role in roles))
        raise TextError(f"no measured token of these texts attends by {names}: expected more texts, or another role.")
    return weights


def _queries_with_matches(
    item: Prompt, positions: Sequence[int], words: RelatedWords, role: RoleTokens, causal: bool
) -> list[tuple[int, int]]:
    """Each measured query of a role, of a relation that the model can see, with its match."""
    if role.name == REPEATED:
        half = len(item) // 2
        return [(position, position - half) for position in positions if position >= half]
    pairs = words.instances().get(role.name, [])
    if role.direction != DIRECTIONS[0]:
        pairs = [pair[::-1] for pair in pairs]
    visible = [query for query, key in pairs if key < query or not causal]
    queries = {position for query in visible for position in words.members[0][query]}
    others = [
        position
        for position in positions
        if position not in queries and not item.sink[position] and any(map(str.isalnum, item.pieces[position]))
    ]
    measured = [position for position in positions if position in queries]
    return [(query, min(others, key=lambda other: abs(other - query))) for query in measured if others]
