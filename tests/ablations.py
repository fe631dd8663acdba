"""Models for ablations, and what removing heads does computed again without attnviz: edited weights, one text alone."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import BertForMaskedLM, BertModel, GPT2LMHeadModel

from attnviz.commands.ablate.inputs import MASKED, NEXT, STATES
from attnviz.commands.ablate.measure import Ablation, ablate
from tests.models import (
    _D_HEAD,
    _N_HEADS,
    _PART,
    _codes,
    bert_config,
    bert_tokenizer,
    gpt2_tokenizer,
    known_bert,
    known_gpt2,
    sharp_bert,
    sharp_gpt2,
)

TEXTS = ["the cat that i saw ran away", "one two three", "he was in the house of a dog", "it ran to the tree and away"]


def next_token_model(**changes: Any) -> tuple[Any, Any]:
    """A sharpened GPT-2 with its language-modelling head; all biases count, and so does what every head writes."""
    return _louder(sharp_gpt2(model_class=GPT2LMHeadModel, **changes)), gpt2_tokenizer()


def masked_token_model(**changes: Any) -> tuple[Any, Any]:
    """A sharpened BERT with its masked-language-modelling head."""
    return _louder(sharp_bert(model_class=BertForMaskedLM, **changes)), bert_tokenizer()


def states_model(**changes: Any) -> tuple[Any, Any]:
    """A sharpened BERT without a head."""
    return _louder(sharp_bert(model_class=BertModel, **changes)), bert_tokenizer()


KINDS = {NEXT: next_token_model, MASKED: masked_token_model, STATES: states_model}
"""The models by what can be measured of them."""


def measured(kind: str, texts: Any, **options: Any) -> Ablation:
    """One head at a time, and no more unless asked for."""
    model, tokenizer = KINDS[kind]()
    return ablate(texts, model, tokenizer=tokenizer, **{"curve": False, "gradient": False, **options})


@torch.no_grad()
def _louder(model: Any) -> Any:
    """Values, W_O and logits of a size with which each head changes what comes out."""
    d_model = model.config.hidden_size
    for name, parameter in model.named_parameters():
        if name.endswith(("wte.weight", "word_embeddings.weight")):
            parameter.mul_(20)  # tied to the logits
        elif name.endswith("c_attn.weight"):
            parameter[:, 2 * d_model :].mul_(5)
        elif name.endswith(("attention.self.value.weight", "attn.c_proj.weight", "attention.output.dense.weight")):
            parameter.mul_(5)
    return model


def output_map(model: Any, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W_O of a layer with the heads' values along the first axis, a view of the parameter, and b_O."""
    base = getattr(model, "transformer", getattr(model, "bert", model))
    if hasattr(base, "h"):
        module = base.h[layer].attn.c_proj
        return module.weight, module.bias
    module = base.encoder.layer[layer].attention.output.dense
    return module.weight.T, module.bias


def without(
    model: Any, heads: Iterable[tuple[int, int]], means: dict[tuple[int, int], torch.Tensor] | None = None
) -> Any:
    """A copy in which W_O of each head is zero; with means, what they give is in b_O instead."""
    edited = copy.deepcopy(model)
    d_head = model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        for layer, head in heads:
            weight, bias = output_map(edited, layer)
            rows = slice(head * d_head, (head + 1) * d_head)
            if means is not None:
                bias += means[layer, head].to(weight) @ weight[rows]
            weight[rows] = 0
    return edited


def with_uniform(model: Any, heads: Iterable[tuple[int, int]]) -> Any:
    """A copy in which W_Q and b_Q of each head are zero, so that all its scores are."""
    edited = copy.deepcopy(model)
    d_head = model.config.hidden_size // model.config.num_attention_heads
    base = getattr(edited, "transformer", getattr(edited, "bert", edited))
    with torch.no_grad():
        for layer, head in heads:
            rows = slice(head * d_head, (head + 1) * d_head)
            if hasattr(base, "h"):
                module = base.h[layer].attn.c_attn
                module.weight[:, rows] = 0
                module.bias[rows] = 0
            else:
                module = base.encoder.layer[layer].attention.self.query
                module.weight[rows] = 0
                module.bias[rows] = 0
    return edited


def mean_values(model: Any, tokenizer: Any, texts: Iterable[str]) -> dict[tuple[int, int], torch.Tensor]:
    """What each head gives on average over all tokens, each text alone."""
    n_layers, n_heads = model.config.num_hidden_layers, model.config.num_attention_heads
    base = getattr(model, "transformer", getattr(model, "bert", model))
    modules = (
        [block.attn.c_proj for block in base.h]
        if hasattr(base, "h")
        else [layer.attention.output.dense for layer in base.encoder.layer]
    )
    seen: list[list[torch.Tensor]] = [[] for _ in modules]
    handles = [
        module.register_forward_pre_hook(lambda _, args, keep=keep: keep.append(args[0][0].detach()))
        for module, keep in zip(modules, seen, strict=True)
    ]
    with torch.no_grad():
        for text in texts:
            model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False))
    for handle in handles:
        handle.remove()
    found = {}
    for layer in range(n_layers):
        mean = torch.cat(seen[layer]).double().mean(0).reshape(n_heads, -1)
        found |= {(layer, head): mean[head] for head in range(n_heads)}
    return found


@torch.no_grad()
def effects_of(model: Any, edited: Any, tokenizer: Any, texts: Iterable[str]) -> tuple[float, float]:
    """Both measures, per token: loss increase and KL divergence, or cosine and L2 distance of the final states."""
    found = [_text_effects(model, edited, tokenizer, text) for text in texts]
    n = sum(len(first) for first, _ in found)
    first, second = (float(sum(float(each[k].double().sum()) for each in found)) / n for k in range(2))
    return first, second


def _text_effects(model: Any, edited: Any, tokenizer: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    ids = inputs["input_ids"]
    if isinstance(model, GPT2LMHeadModel):
        before, after = model(**inputs).logits[0, :-1], edited(**inputs).logits[0, :-1]
        return _losses(before, after, ids[0, 1:])
    if isinstance(model, BertForMaskedLM):
        losses = []
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            pair = (each(input_ids=masked).logits[0, place : place + 1] for each in (model, edited))
            losses.append(_losses(*pair, ids[0, place : place + 1]))
        return torch.cat([loss for loss, _ in losses]), torch.cat([kl for _, kl in losses])
    before, after = model(**inputs).last_hidden_state[0], edited(**inputs).last_hidden_state[0]
    return 1 - torch.cosine_similarity(before.double(), after.double()), (before - after).norm(dim=-1)


def _losses(before: torch.Tensor, after: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    increase = cross_entropy(after, labels, reduction="none") - cross_entropy(before, labels, reduction="none")
    p, q = before.double().softmax(-1), after.double().softmax(-1)
    return increase, (p * (p / q).log()).sum(-1)


def copying_gpt2() -> tuple[Any, Any]:
    """A GPT-2 that predicts the token before the present one, by its head L0H0 alone; the others write next to nothing.

    See :func:`tests.models._codes`: L0H0 looks at the previous token and writes its code where the
    language-modelling head reads.
    """
    base = known_gpt2()
    model = GPT2LMHeadModel(base.config).eval()
    model.transformer = base
    words, _ = _codes(base.config.vocab_size)
    reading = torch.zeros_like(words)
    reading[:, 2 * _PART : 3 * _PART] = 0.08 * words[:, _PART : 2 * _PART]
    model.lm_head.weight = torch.nn.Parameter(reading)
    for block in base.h:
        _whisper(block.attn.c_attn.weight[:, 2 * _N_HEADS * _D_HEAD :], block.attn.c_proj.weight)
    return model, gpt2_tokenizer()


def copying_bert(pairs: Iterable[tuple[str, str]]) -> tuple[Any, Any]:
    """A BERT that fills in the partner of the token before a mask, by its head L0H0 alone; see :func:`copying_gpt2`."""
    tokenizer = bert_tokenizer()
    base = known_bert()
    model = BertForMaskedLM(bert_config(**{key: getattr(base.config, key) for key in _SIZES})).eval()
    model.bert = base
    words, _ = _codes(base.config.vocab_size)
    head = model.cls.predictions
    with torch.no_grad():
        head.transform.dense.weight.zero_()
        head.transform.dense.weight[: 3 * _PART, : 3 * _PART] = torch.eye(3 * _PART)
        reading = torch.zeros_like(words)
        reading[:, 2 * _PART : 3 * _PART] = 0.1 * words[:, _PART : 2 * _PART]
        for pair in pairs:
            first, second = tokenizer.convert_tokens_to_ids(list(pair))
            reading[[first, second]] = reading[[second, first]]
        head.decoder.weight = torch.nn.Parameter(reading)
    for layer in base.encoder.layer:
        _whisper(layer.attention.self.value.weight.T, layer.attention.output.dense.weight.T)
    return model, tokenizer


_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")


@torch.no_grad()
def _whisper(value: torch.Tensor, output: torch.Tensor) -> None:
    """Let the heads that write nothing write a little noise: [d_model, values] and [values, d_model], views."""
    generator = torch.Generator().manual_seed(0)
    for head in range(_N_HEADS):
        columns = slice(head * _D_HEAD, (head + 1) * _D_HEAD)
        if not output[columns].any():
            value[:, columns] = 0.02 * torch.randn(value[:, columns].shape, generator=generator)
            output[columns] = 0.02 * torch.randn(output[columns].shape, generator=generator)
