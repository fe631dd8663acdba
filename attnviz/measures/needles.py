"""Needles: sentences hidden in a long text, which heads copy out of it when the model is asked (Wu et al. 2024)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.inputs.batches import batch_of_ids
from attnviz.inputs.encoding import encodings
from attnviz.models.checkpoint import Checkpoint
from attnviz.run.corpus import SampledAttention
from attnviz.run.generate import drafted_greedily

LENGTHS = (256, 512, 1024)  # tokens of a prompt with its answer (the paper: 1,000 to 50,000)
DEPTHS = [(tenth + 0.5) / 10 for tenth in range(10)]  # where the needle stands in the text (the paper: 0 to 1)
RECALLED = 0.5  # share of an answer's tokens to be written (the paper)


@dataclass(frozen=True)
class Prompt:
    """A text with a needle, and its question."""

    ids: tuple[int, ...]
    start: int  # of the answer in the needle
    answer: tuple[int, ...]


def prompts(checkpoint: Checkpoint, haystack: list[int], needles: Sequence[Mapping[str, str]]) -> list[Prompt]:
    """Every needle at every depth of texts of every length that model and haystack have; of each another stretch.

    A needle has a ``statement``, its ``end``, which is asked for, and a ``question``.
    """
    with_needle = list[Prompt]()
    begin = encodings(checkpoint, ["a"])[0].ids[:1]
    if begin[0] != checkpoint.tokenizer.bos_token_id:
        begin = []
    start = 0  # of the next stretch

    def ids(text: str) -> list[int]:
        return list(checkpoint.tokenizer(text, add_special_tokens=False)["input_ids"])

    for length in dict.fromkeys(min(most, checkpoint.positions) for most in LENGTHS):
        for needle in needles:
            before = ids("\n{statement}".format_map(needle))
            answer = ids("\n{statement}{end}".format_map(needle))[len(before) :]
            asked = ids("\nQuestion: {question}\nAnswer: {statement}".format_map(needle))
            room = length - len(begin + before + asked) - 2 * len(answer) - 1
            if not len(asked) < room <= len(haystack):
                continue
            for depth in DEPTHS:
                if start + room > len(haystack):
                    start = 0
                text = haystack[start : start + room]
                cut = round(depth * room)
                start += room
                first = [*begin, *text[:cut], *before]
                whole = (*first, *answer, *ids("\n")[-1:], *text[cut:], *asked)
                with_needle.append(Prompt(whole, len(first), tuple(answer)))
    return with_needle


def retrieval(checkpoint: Checkpoint, attention: SampledAttention, prompt: Prompt) -> tuple[Tensor, bool]:
    """Retrieval scores of a model that answers, [n_layers, n_heads], and whether it wrote over half of the answer."""
    answer = prompt.answer
    written = drafted_greedily(checkpoint, prompt.ids, answer)
    ids = (*prompt.ids, *written[:-1])
    copied = torch.tensor(written)[:, None] == torch.tensor(ids)  # [n_written, n]
    copied[:, : prompt.start] = copied[:, prompt.start + len(answer) :] = False
    scores = torch.zeros(checkpoint.n_layers, checkpoint.n_heads, dtype=torch.float64)

    def on_pattern(layer: int, pattern: Tensor) -> None:
        largest = pattern[0, :, -len(written) :].argmax(-1).cpu()  # [n_heads, n_written]
        scores[layer] = copied.gather(1, largest.T).sum(0) / len(answer)

    attention.run(batch_of_ids(checkpoint, [ids]), on_pattern)
    return scores, len(set(answer) & set(written)) > RECALLED * len(set(answer))
