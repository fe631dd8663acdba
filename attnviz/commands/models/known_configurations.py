"""The models of the BERT, GPT-2 and GPT-3 papers, as the papers print them; what they do not print is marked.

Taken from public copies of the papers: Devlin et al. 2019, section 3; Radford et al. 2019, Table 2; Brown et al. 2020,
Table 2.1. Oddities of the originals are kept, and noted.
"""

from dataclasses import dataclass

from attnviz.commands.models.configurations import Configuration, width_of_heads
from attnviz.commands.models.parameter_counts import Sizes, attention_parameters, bert_parameters, gpt2_parameters

__all__ = ["PAPERS", "paper_configuration", "paper_configurations", "paper_name", "paper_of_release"]

PAPERS = {
    "Devlin et al. 2019": "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, section 3",
    "Radford et al. 2019": "Language Models are Unsupervised Multitask Learners, Table 2",
    "Brown et al. 2020": "Language Models are Few-Shot Learners, Table 2.1",
}
"""Papers by what they are cited as: title and the place of the numbers."""

_BERT_NOTES = (
    "counted with the pooler and the released, uncased vocabulary of 30,522 entries; the paper rounds both numbers",
)
_GPT2_NOTES = (
    "the paper does not give n_heads and d_head",
    "its parameter counts are wrong, as the README of its authors' repository says; counted is what they released",
)
_GPT3_NOTES = ("its layers alternate dense and locally banded sparse attention",)
_NOT_PUBLIC = "weights are not public"


@dataclass(frozen=True)
class _Known:
    """A row: stated parameters in millions, d_head only where the paper prints it, and the hub id of the weights."""

    name: str
    stated: int
    n_layers: int
    d_model: int
    n_heads: int
    d_head: int | None = None
    notes: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()
    hub_id: str | None = None


_BERT = (
    _Known("bert-base", 110, 12, 768, 12, hub_id="bert-base-uncased"),
    _Known("bert-large", 340, 24, 1024, 16, hub_id="bert-large-uncased"),
)
_GPT2 = (
    _Known("gpt2-small", 117, 12, 768, 12, hub_id="gpt2"),
    _Known("gpt2-medium", 345, 24, 1024, 16, hub_id="gpt2-medium"),
    _Known("gpt2-large", 762, 36, 1280, 20, hub_id="gpt2-large"),
    _Known("gpt2-xl", 1542, 48, 1600, 25, hub_id="gpt2-xl"),
)
_GPT3 = (
    _Known("gpt3-125m", 125, 12, 768, 12, 64, other_names=("gpt3-small",)),
    _Known("gpt3-350m", 350, 24, 1024, 16, 64, other_names=("gpt3-medium",)),
    _Known("gpt3-760m", 760, 24, 1536, 16, 96, other_names=("gpt3-large",)),
    _Known("gpt3-1.3b", 1_300, 24, 2048, 24, 128, ("n_heads and d_head are as printed",), ("gpt3-xl",)),
    _Known("gpt3-2.7b", 2_700, 32, 2560, 32, 80),
    _Known("gpt3-6.7b", 6_700, 32, 4096, 32, 128),
    _Known("gpt3-13b", 13_000, 40, 5140, 40, 128, ("d_model is as printed, probably a misprint for 5120",)),
    _Known("gpt3-175b", 175_000, 96, 12288, 96, 128, other_names=("gpt3",)),
)


def paper_configurations() -> list[Configuration]:
    """All of them: BERT, GPT-2, GPT-3, each from the smallest."""
    return [*map(_bert, _BERT), *map(_gpt2, _GPT2), *map(_gpt3, _GPT3)]


def paper_configuration(name: str) -> Configuration | None:
    """The paper's model of this name, in any case, ``gpt-3`` or ``gpt3``; None where there is none."""
    canonical = paper_name(name)
    return next((known for known in paper_configurations() if known.name == canonical), None)


def paper_name(name: str) -> str | None:
    """What the model is called here; None for a name that is no paper's model."""
    wanted = name.casefold().replace("gpt-", "gpt")
    for known in (*_BERT, *_GPT2, *_GPT3):
        if wanted in (known.name, *known.other_names):
            return known.name
    return None


def paper_of_release(hub_id: str) -> str | None:
    """The paper's model that a hub id holds the weights of, with or without its owner; None for any other."""
    wanted = hub_id.casefold().rpartition("/")[2]
    return next((known.name for known in (*_BERT, *_GPT2) if known.hub_id == wanted), None)


def _bert(known: _Known) -> Configuration:
    sizes = Sizes(known.n_layers, known.d_model, 4 * known.d_model, vocabulary=30_522, positions=512, segments=2)
    origins = {"n_heads": "paper", "d_head": "derived"}
    return _released(known, "Devlin et al. 2019", "bert", sizes, bert_parameters(sizes), origins, _BERT_NOTES)


def _gpt2(known: _Known) -> Configuration:
    sizes = Sizes(known.n_layers, known.d_model, 4 * known.d_model, vocabulary=50_257, positions=1024)
    origins = {"n_heads": "released", "d_head": "released", "vocabulary": "paper"}
    return _released(known, "Radford et al. 2019", "gpt2", sizes, gpt2_parameters(sizes), origins, _GPT2_NOTES)


def _released(
    known: _Known,
    paper: str,
    architecture: str,
    sizes: Sizes,
    parameters: int,
    origins: dict[str, str],
    notes: tuple[str, ...],
) -> Configuration:
    """A model whose weights are public, so that its parameters can be counted, too."""
    d_head, _ = width_of_heads(known.d_model, known.n_heads, None)
    return Configuration(
        name=known.name,
        kind="paper",
        source=paper,
        architecture=architecture,
        n_layers=known.n_layers,
        n_heads=known.n_heads,
        d_model=known.d_model,
        d_head=d_head,
        positions=sizes.positions,
        vocabulary=sizes.vocabulary,
        parameters=parameters,
        attention_parameters=attention_parameters(sizes),
        stated_parameters=known.stated * 10**6,
        reproduced=True,
        origins={
            **dict.fromkeys(("n_layers", "d_model", "positions", "stated_parameters"), "paper"),
            **dict.fromkeys(("parameters", "attention_parameters"), "counted"),
            "vocabulary": "released",
            **origins,
        },
        notes=notes,
    )


def _gpt3(known: _Known) -> Configuration:
    d_head, odd = width_of_heads(known.d_model, known.n_heads, known.d_head)
    printed = ("n_layers", "d_model", "n_heads", "d_head", "positions", "stated_parameters")
    return Configuration(
        name=known.name,
        kind="paper",
        source="Brown et al. 2020",
        architecture="gpt3",
        n_layers=known.n_layers,
        n_heads=known.n_heads,
        d_model=known.d_model,
        d_head=d_head,
        positions=2048,
        stated_parameters=known.stated * 10**6,
        reason=_NOT_PUBLIC,
        origins=dict.fromkeys(printed, "paper"),
        notes=(*([odd] if odd else []), *known.notes, *_GPT3_NOTES),
    )
