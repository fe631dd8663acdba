"""The tokens of a role's queries, and matched ones: whether what a head tracks also needs it.

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
from attnviz.commands.ablate.inputs import CLASSES, ModelInput
from attnviz.errors import TextError, UsageError
from attnviz.language.parsers import load_parser
from attnviz.language.syntax import DIRECTIONS
from attnviz.language.universal import RELATIONS
from attnviz.measures.relations import RelatedWords
from attnviz.measures.repeats import repeated_tokens
from attnviz.models.checkpoint import Checkpoint
from attnviz.profiles.parts import SYNTACTIC
from attnviz.texts.batches import EncodedText
from attnviz.texts.reading import Parser, Text, ready

REPEATED = "repeated tokens"
"""The name of what is measured on random tokens: their second copy, beside the first."""


class RoleTokens(NamedTuple):
    """The tokens of a role's queries: a relation in one direction, or :data:`REPEATED`."""

    role: str
    direction: str | None


def role_names(roles: object) -> list[str]:
    """One relation or several, as a list; UsageError for anything else."""
    names = [roles] if isinstance(roles, str) else roles
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"expected role as a relation such as 'obj', or a list of these, found {as_found(roles)}.")
    return [relation_named(name) for name in names]


def role_tokens(roles: Sequence[str], repeats: bool) -> list[RoleTokens]:
    """What is measured apart: of each relation both directions.

    Raises:
        UsageError: no relation of this name, or random tokens, which have none.
    """
    names = [role.removeprefix(SYNTACTIC) for role in roles]
    for name in names:
        if name.partition(":")[0] not in RELATIONS:
            known = f"expected a relation, one of {', '.join(RELATIONS)}.{did_you_mean(name, RELATIONS)}"
            raise UsageError(f"unknown role {name!r}: {known}")
    if repeats and names:
        raise UsageError("random tokens have no relations: expected --role (role=...) with a corpus, or --repeats.")
    if repeats:
        return [RoleTokens(REPEATED, None)]
    return [RoleTokens(f"{SYNTACTIC}{name}", direction) for name in dict.fromkeys(names) for direction in DIRECTIONS]


def texts_with_roles(checkpoint: Checkpoint, texts: Sequence[Text], kind: str, repeats: bool, seed: int) -> list[Text]:
    """The texts, parsed where they have no trees, without trees too small or large for a profile; or random ones.

    Raises:
        UsageError: the model's own tokens are not what is measured, or no parser is installed.
    """
    if checkpoint.stacks or kind in CLASSES:
        of = "an encoder-decoder" if checkpoint.stacks else "a classifier"
        raise UsageError(
            f"this is {of}: --role (role=...) and --repeats are for models that read one text and predict or encode "
            "its tokens."
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
        if (pipeline := load_parser()) is None:
            raise UsageError(
                "the tokens of a role need a treebank (.conllu), or spaCy to parse with: pip install 'attnviz[syntax]'."
            )
        parse = Parser(pipeline)
    return [known for text in texts if (known := ready(text, parse)) is not None]


def token_weights(checkpoint: Checkpoint, inputs: Sequence[ModelInput], of: Sequence[RoleTokens]) -> list[Tensor]:
    """How often each token counts, by text, [n_tokens, 1 + 2 * n_roles]: among all, then queries and matches of roles.

    Raises:
        TextError: no measured token is a query of any role.
    """
    weights = list[Tensor]()
    for _, inputs_of_text in groupby(inputs, key=lambda each: each.text):
        of_text = list(inputs_of_text)
        item, positions = of_text[0].item, [position for each in of_text for position in each.positions]
        counts = torch.zeros(len(item) + len(item.target), 1 + 2 * len(of), dtype=torch.float64)
        counts[positions, 0] = 1
        words = RelatedWords.of([(item.members, item.source.arcs, [i for i, sink in enumerate(item.sink) if sink])])
        for number, role in enumerate(of):
            pairs = _matched(item, positions, _queries(item, words, role, checkpoint.architecture.causal))
            for side in (0, 1):
                chosen = torch.tensor([pair[side] for pair in pairs], dtype=torch.long)
                counts[:, 1 + 2 * number + side] = torch.bincount(chosen, minlength=len(counts))
        weights.append(counts)
    if of and not any(each[:, 1:].any() for each in weights):
        named = " or ".join(dict.fromkeys(role.role.removeprefix(SYNTACTIC) for role in of))
        raise TextError(f"no measured token of these texts attends by {named}: expected more texts, or another role.")
    return weights


def _queries(item: EncodedText, words: RelatedWords, role: RoleTokens, causal: bool) -> set[int]:
    """The positions of a role's queries; of a relation that the model can see."""
    if role.role == REPEATED:
        return set(range(len(item) // 2, len(item)))
    ends = words.instances().get(role.role.removeprefix(SYNTACTIC), [])
    pairs = ends if role.direction == DIRECTIONS[0] else [pair[::-1] for pair in ends]
    return {position for query, key in pairs if key < query or not causal for position in words.members[0][query]}


def _matched(item: EncodedText, positions: Sequence[int], queries: set[int]) -> list[tuple[int, int]]:
    """Each measured query with its match."""
    measured = [position for position in positions if position in queries]
    if item.source.ids:
        return [(position, position - len(item) // 2) for position in measured]
    others = [
        position for position in positions
        if position not in queries and not item.sink[position] and any(map(str.isalnum, item.pieces[position]))
    ]  # fmt: skip
    return [(query, min(others, key=lambda other: abs(other - query))) for query in measured if others]
