"""The models of the BERT, GPT-2 and GPT-3 papers, as the papers print them; what they do not print is marked.

Taken from public copies of the papers: Devlin et al. 2019, section 3; Radford et al. 2019, Table 2; Brown et al. 2020,
Table 2.1. Oddities of the originals are kept, and noted.
"""

from dataclasses import replace
from typing import NamedTuple

from attnviz.commands.models.configurations import Configuration, parameter_counts, width_of_heads

__all__ = ["PAPERS", "paper_configuration", "paper_configurations", "paper_of_release"]

PAPERS = {
    "Devlin et al. 2019": "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, section 3",
    "Radford et al. 2019": "Language Models are Unsupervised Multitask Learners, Table 2",
    "Brown et al. 2020": "Language Models are Few-Shot Learners, Table 2.1",
}
"""Papers by what they are cited as: title and the place of the numbers."""


class _Paper(NamedTuple):
    """What holds for all models of a paper; the vocabulary is None where the weights are not public."""

    cited: str
    positions: int
    vocabulary: int | None
    segments: int
    origins: dict[str, str]
    notes: tuple[str, ...]


class _Row(NamedTuple):
    """A model: stated parameters in millions, sizes, d_head where the paper prints it, other names, a note."""

    name: str
    stated: int
    n_layers: int
    d_model: int
    n_heads: int
    d_head: int | None = None
    other_name: str = ""
    note: str = ""


_BERT, _GPT2, _GPT3 = PAPERS
_PAPERS = {
    "bert": _Paper(
        _BERT, 512, 30_522, 2, {"vocabulary": "released", "n_heads": "paper", "d_head": "derived"},
        ("counted with the pooler and the released, uncased vocabulary of 30,522 entries; "
         "the paper rounds both numbers",),
    ),
    "gpt2": _Paper(
        _GPT2, 1024, 50_257, 0, {"vocabulary": "paper", "n_heads": "released", "d_head": "released"},
        ("the paper does not give n_heads and d_head",
         "its parameter counts are wrong, as the README of its authors' repository says; "
         "counted is what they released"),
    ),
    "gpt3": _Paper(
        _GPT3, 2048, None, 0, {"n_heads": "paper", "d_head": "paper"},
        ("its layers alternate dense and locally banded sparse attention",),
    ),
}  # fmt: skip
_ROWS = (
    _Row("bert-base", 110, 12, 768, 12),
    _Row("bert-large", 340, 24, 1024, 16),
    _Row("gpt2-small", 117, 12, 768, 12),
    _Row("gpt2-medium", 345, 24, 1024, 16),
    _Row("gpt2-large", 762, 36, 1280, 20),
    _Row("gpt2-xl", 1542, 48, 1600, 25),
    _Row("gpt3-125m", 125, 12, 768, 12, 64, "gpt3-small"),
    _Row("gpt3-350m", 350, 24, 1024, 16, 64, "gpt3-medium"),
    _Row("gpt3-760m", 760, 24, 1536, 16, 96, "gpt3-large"),
    _Row("gpt3-1.3b", 1_300, 24, 2048, 24, 128, "gpt3-xl", "n_heads and d_head are as printed"),
    _Row("gpt3-2.7b", 2_700, 32, 2560, 32, 80),
    _Row("gpt3-6.7b", 6_700, 32, 4096, 32, 128),
    _Row("gpt3-13b", 13_000, 40, 5140, 40, 128, "", "d_model is as printed, probably a misprint for 5120"),
    _Row("gpt3-175b", 175_000, 96, 12288, 96, 128, "gpt3"),
)
_RELEASED = {"bert-base-uncased": "bert-base", "bert-large-uncased": "bert-large", "gpt2": "gpt2-small"}
_RELEASED |= {name: name for name in ("gpt2-medium", "gpt2-large", "gpt2-xl")}
"""By hub id of the weights, without its owner."""


def paper_configurations() -> list[Configuration]:
    """All of them: BERT, GPT-2, GPT-3, each from the smallest."""
    return [_configuration(row) for row in _ROWS]


def paper_configuration(name: str) -> Configuration | None:
    """The paper's model of this name, in any case, ``gpt-3`` or ``gpt3``; None where there is none."""
    wanted = name.casefold().replace("gpt-", "gpt")
    return next((_configuration(row) for row in _ROWS if wanted and wanted in (row.name, row.other_name)), None)


def paper_of_release(hub_id: str) -> str | None:
    """The paper's model that a hub id holds the weights of, with or without its owner; None for any other."""
    return _RELEASED.get(hub_id.casefold().rpartition("/")[2])


def _configuration(row: _Row) -> Configuration:
    """A model; where its weights are public, its parameters are counted, too."""
    architecture = row.name.partition("-")[0]
    paper = _PAPERS[architecture]
    d_head, odd = width_of_heads(row.d_model, row.n_heads, row.d_head)
    model = Configuration(
        row.name, "paper", paper.cited, architecture, row.n_layers, row.n_heads, None, row.d_model, d_head,
        paper.positions, paper.vocabulary, stated_parameters=row.stated * 10**6, reason="weights are not public",
        origins=dict.fromkeys(("n_layers", "d_model", "positions", "stated_parameters"), "paper") | paper.origins,
        notes=tuple(filter(None, (odd, row.note, *paper.notes))),
    )  # fmt: skip
    if paper.vocabulary is None:
        return model
    counts = parameter_counts(
        row.n_layers, row.d_model, 4 * row.d_model, paper.vocabulary, paper.positions, paper.segments
    )
    return replace(model, reproduced=True, reason=None).with_counts(*counts)
