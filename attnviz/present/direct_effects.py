"""Direct effects on the logit of an answer, for documents and in words (:mod:`attnviz.measures.direct_effects`)."""

from collections.abc import Sequence

from attnviz.measures.direct_effects import NOT_LINEAR, DirectEffects
from attnviz.models.checkpoint import Checkpoint
from attnviz.present.documents import Entry, layer_entry
from attnviz.present.fields import values_of
from attnviz.wording import quoted, rounded, signed

_WRITTEN = "position boundary difference linear deviation answer predicted foil actual classes".split()
_OF_LAYERS = {
    "attention bias": "b_O of all layers",
    "feed-forward": "feed-forward networks",
    "experts": "experts",
    "mixer": "mixers of layers that do not attend",
    "norm bias": "biases of norms",
    "words by layer": "tables of words that layers read",
}


def effects_entry(effects: DirectEffects) -> Entry:
    """Effects of all that is no head, and what they are of, as a document has them."""
    parts = [vars(part) | layer_entry(part.layer) for part in effects.parts]
    return {**values_of(effects, *_WRITTEN), "parts": parts}


def versus(effects: DirectEffects) -> str:
    """Answer and foil: ``“good” minus “bad”``; of question answering ``start at “France”``."""
    if effects.foil is None:
        return f"{effects.boundary} at {quoted(effects.answer.text)}"
    return f"{quoted(effects.answer.text)} minus {quoted(effects.foil.text)}"


def effects_in_words(effects: DirectEffects, labels: Sequence[str]) -> str:
    """What the model predicts at a position of a text with these labels, and the parts of the logit."""
    predicted, answer, actual = effects.predicted, effects.answer, effects.actual
    where = f"#{effects.position} (‘{labels[effects.position]}’)"
    sums: dict[str, float] = {"heads": sum(effects.heads.values())}  # and the others, so that the reader can add up
    for part in effects.parts:
        name = _OF_LAYERS.get(part.name, part.name)
        if name.endswith(NOT_LINEAR):
            name = f"what is not linear in the {name.removesuffix(NOT_LINEAR)}"
        sums[name] = sums.get(name, 0.0) + part.direct_effect
    parts = ", ".join(f"{name} {signed(value)}" for name, value in sums.items())
    whole = f"{signed(effects.difference)}, of which {parts}."
    if effects.boundary:
        return (
            f"The answer’s {effects.boundary} at {where} has probability {rounded(answer.probability)}; the model’s "
            f"first choice is #{predicted.id} (‘{predicted.text}’, {rounded(predicted.probability)}). "
            f"Its logit: {whole}"
        )
    follows = ""
    if actual is not None:
        follows = f"; next in the text: ‘{actual.text}’ (probability {rounded(actual.probability)})"
    return (
        f"At {where} the model {'decides for' if effects.classes else 'predicts'} {quoted(predicted.text)} "
        f"(probability {rounded(predicted.probability)}){follows}. The logit of {versus(effects)}: {whole}"
    )


def linear_path(checkpoint: Checkpoint, effects: DirectEffects) -> str:
    """Along which path direct effects are linear."""
    norms = "the final norm" if checkpoint.architecture.pre_norm else "every later norm"
    held = f"Direct effects alone, through {norms} with its scale at this token held fixed"
    classifier = checkpoint.class_head
    what = "unembedding" if classifier is None else "classifier"
    if effects.linear:
        return f"{held}, and through the {what}, which is linear."
    activation = f"{what}'s {classifier.activation}" if classifier and classifier.activation else what
    return (
        f"{held}, up to the {activation}, which is not linear: from there along its gradient at this text, a "
        "linearisation. What that leaves out is a part of its own."
    )
