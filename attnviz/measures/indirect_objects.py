"""Identification of indirect objects: what heads do at the end of prompts such as "When Mary and John …, John gave a".

By path patching, attention and copying (Wang et al. 2022, "Interpretability in the Wild").
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnviz.inputs.tables import PromptPair
from attnviz.measures.bootstrap import named_generator
from attnviz.measures.patching import Part, PatchedPasses
from attnviz.measures.paths import RUN, Receiver
from attnviz.measures.predictions import METRICS
from attnviz.measures.prompt_pairs import DIFFERENCE, PairedInputs
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.progress import Progress, tell
from attnviz.reference import attention
from attnviz.reference.attention import upcast
from attnviz.run.contributions import without_gradients
from attnviz.run.passes import InputBatch, recorded_passes
from attnviz.run.sites import sites_of

AMONG = 5  # of the largest logits


def names_of_one_token(checkpoint: Checkpoint, names: str) -> list[str]:
    """Those of the names, which stand in a line, that are one token with the space before them."""
    tokenizer = checkpoint.tokenizer
    ids = {name: tokenizer(f" {name}", add_special_tokens=False)["input_ids"] for name in names.split()}
    return [name for name, tokens in ids.items() if len(tokens) == 1 and tokens != [tokenizer.unk_token_id]]


def prompts(checkpoint: Checkpoint, words: Mapping[str, Any], n_prompts: int, seed: int) -> list[PromptPair]:
    """Sentences of both orders in turn (ABBA, BABA), and the same with three other names (ABC).

    ``words``: the ``names``, ``places`` and ``things``, each in a line, and the ``templates``, a list.
    """
    names = names_of_one_token(checkpoint, words["names"])
    generator = named_generator(f"wang-2022:{seed}")
    pairs = list[PromptPair]()
    for number in range(n_prompts):
        drawn = [names[index] for index in torch.randperm(len(names), generator=generator)[:5].tolist()]
        template, place, thing = (
            choices[int(torch.randint(len(choices), (), generator=generator))]
            for choices in (words["templates"], words["places"].split(), words["things"].split())
        )
        answer, subject, *others = drawn
        first, second = drawn[:2] if number % 2 == 0 else (subject, answer)
        clean = template.format(first, second, subject, place=place, thing=thing)
        corrupt = template.format(*others, place=place, thing=thing)
        pairs.append(PromptPair(clean, corrupt, f" {answer}", f" {subject}"))
    return pairs


class IndirectObjects:
    """What one model does at the end of the prompts."""

    def __init__(
        self, checkpoint: Checkpoint, inputs: PairedInputs, batch_size: int, progress: Progress | None
    ) -> None:
        self._checkpoint, self._inputs, self._batch_size, self._progress = checkpoint, inputs, batch_size, progress
        n = len(inputs.clean)
        self.heads = select_heads((), checkpoint.kinds)
        self.differences = torch.empty(n)  # logit of the indirect object less that of the subject
        self.falls = self.falls_to(Receiver(None, "", RUN))  # to the logits
        shape = n, checkpoint.n_layers, checkpoint.n_heads
        # attention to the indirect object, to both mentions of the subject, and to the second
        self.attention = {end: torch.zeros(shape, dtype=torch.float64) for end in ("IO", "S", "S2")}
        self._names: list[Tensor] = [torch.empty(0)] * n  # what the first layer made of the indirect object
        streams = sites_of(checkpoint, ["residual"], [min(1, shape[1] - 1)])
        for batch, seen in recorded_passes(checkpoint, inputs.clean, batch_size, streams, self._add_attention):
            (stream,) = seen.values()
            for row, prompt in enumerate(batch.inputs):
                self._names[prompt.text] = stream[row, prompt.item.ids.index(prompt.labels[0])].detach()

    def falls_to(self, receiver: Receiver) -> Tensor:
        """By how much the logit difference falls if the path of each head to a receiver is patched.

        Returns [n_layers * n_heads, n_prompts]; 0 for heads that come after the receiver.
        """
        falls = torch.zeros(len(self.heads), len(self._inputs.clean), dtype=torch.float64)
        senders = receiver.senders(self._checkpoint)
        passes = PatchedPasses(
            checkpoint=self._checkpoint,
            inputs=self._inputs,
            metric=METRICS[DIFFERENCE],
            denoises=False,
            path=receiver,
            unrelated=False,
        )
        passes.run([Part(*head) for head in senders], self._batch_size, partial(tell, self._progress, str(receiver)))
        falls[: len(senders)] = passes.damage[0]
        self.differences = passes.clean
        return falls

    def copy_score(self, id: HeadId, sign: int) -> float:
        """Share of names that the head, on what the first layer made of them, writes among the largest logits."""
        model, (layer, head) = self._checkpoint, id
        modules = model.modules[layer]
        parameters = model.architecture.parameters(model.model, layer)
        predict: Any = model.language_head
        with without_gradients(model.device):
            read = torch.stack(self._names)[None]
            if modules.attention_norm is not None:
                read = modules.attention_norm(read)
            values = upcast(attention.values(read, parameters)[0, head])
            written = (values @ upcast(parameters.output_weight[head])).to(read.dtype)
            if modules.attention_output_norm is not None:
                written = modules.attention_output_norm(written)
            logits = predict(model.architecture.final_states(model.model, sign * written))
        names = torch.tensor([prompt.labels for prompt in self._inputs.clean])
        return float((logits.topk(AMONG).indices.cpu() == names).any(-1).double().mean())

    def _add_attention(self, batch: InputBatch, layer: int, pattern: Tensor) -> None:
        for row, prompt in enumerate(batch.inputs):
            ids = prompt.item.ids
            weights = pattern[row, :, prompt.positions[0]].double().cpu()
            subjects = [position for position, id in enumerate(ids) if id == prompt.foils[0]]
            places = {"IO": [ids.index(prompt.labels[0])], "S": subjects, "S2": subjects[-1:]}
            for end, positions in places.items():
                self.attention[end][prompt.text, layer] = weights[:, positions].sum(-1)
