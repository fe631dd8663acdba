"""Models for ablations, and what removing heads does computed again without attnviz: edited weights, one text alone."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import BertForMaskedLM, BertModel, GPT2LMHeadModel

from attnviz.commands.ablate import Ablation, ablate
from attnviz.measures.predictions import MASKED, NEXT, STATES
from tests.support import models
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

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


KINDS = {NEXT: next_token_model, MASKED: masked_token_model, STATES: states_model}  # by what is measured


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


def layers_of(model: Any) -> tuple[Any, bool]:
    """The layers of a model with or without a head, and whether it is a GPT-2."""
    base = getattr(model, "transformer", getattr(model, "bert", model))
    return (base.h, True) if hasattr(base, "h") else (base.encoder.layer, False)


def output_map(model: Any, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W_O of a layer with the heads' values along the first axis, a view of the parameter, and b_O."""
    layers, is_gpt2 = layers_of(model)
    module = layers[layer].attn.c_proj if is_gpt2 else layers[layer].attention.output.dense
    return module.weight if is_gpt2 else module.weight.T, module.bias


@torch.no_grad()
def without(model: Any, tokenizer: Any, heads: Iterable[tuple[int, int]], method: str = "zero") -> Any:
    """A copy whose weights lack heads.

    ``zero``: W_O of each head is zero. ``mean``: and what the head gives on average is in b_O. ``uniform``: W_Q and b_Q
    of each head are zero instead, so that all its scores are.
    """
    edited = copy.deepcopy(model)
    layers, is_gpt2 = layers_of(edited)
    d_head = model.config.hidden_size // model.config.num_attention_heads
    for layer, head in heads:
        rows = slice(head * d_head, (head + 1) * d_head)
        if method == "uniform":
            module = layers[layer].attn.c_attn if is_gpt2 else layers[layer].attention.self.query
            (module.weight.T if is_gpt2 else module.weight)[rows] = 0
            module.bias[rows] = 0
            continue
        weight, bias = output_map(edited, layer)
        if method == "mean":
            bias += mean_values(model, tokenizer, layer)[rows].to(weight) @ weight[rows]
        weight[rows] = 0
    return edited


def mean_values(model: Any, tokenizer: Any, layer: int) -> torch.Tensor:
    """What the heads of a layer give on average over all tokens of :data:`TEXTS`, each text alone, side by side."""
    layers, is_gpt2 = layers_of(model)
    module = layers[layer].attn.c_proj if is_gpt2 else layers[layer].attention.output.dense
    values: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: values.append(args[0][0].double()))
    for text in TEXTS:
        model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False))
    handle.remove()
    return torch.cat(values).mean(0)


@torch.no_grad()
def effects_of(model: Any, edited: Any, tokenizer: Any, texts: Iterable[str] = TEXTS) -> tuple[float, float]:
    """Both metrics, per token: loss increase and KL divergence, or cosine and L2 distance of the final states."""
    effects = torch.cat([_text_effects(model, edited, tokenizer, text) for text in texts])
    first, second = effects.mean(0).tolist()
    return first, second


def predictions(model: Any, tokenizer: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits where one text alone is predicted, [tokens, vocabulary], and what stands there, [tokens]."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    if isinstance(model, GPT2LMHeadModel):
        return model(ids).logits[0, :-1], ids[0, 1:]
    places = torch.arange(1, ids.shape[1] - 1)
    masked = ids.repeat(len(places), 1)
    masked[torch.arange(len(places)), places] = tokenizer.mask_token_id
    return model(masked).logits[torch.arange(len(places)), places], ids[0, 1:-1]


def _text_effects(model: Any, edited: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """[tokens, 2]."""
    if isinstance(model, BertModel):
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        before, after = (each(**inputs).last_hidden_state[0].double() for each in (model, edited))
        return torch.stack([1 - torch.cosine_similarity(before, after), (before - after).norm(dim=-1)], dim=-1)
    (before, labels), (after, _) = (predictions(each, tokenizer, text) for each in (model, edited))
    increase = cross_entropy(after, labels, reduction="none") - cross_entropy(before, labels, reduction="none")
    p, q = before.double().softmax(-1), after.double().softmax(-1)
    return torch.stack([increase.double(), (p * (p / q).log()).sum(-1)], dim=-1)


def copying_gpt2() -> tuple[Any, Any]:
    """A GPT-2 that predicts the token before the present one, by its head L0H0 alone; the others write next to nothing.

    See :func:`tests.support.models._codes`: L0H0 looks at the previous token and writes its code where the
    language-modelling head reads.
    """
    base = models.known_gpt2()
    model = GPT2LMHeadModel(base.config).eval()
    model.transformer = base
    words, _ = models._codes(base.config.vocab_size)
    reading = torch.zeros_like(words)
    reading[:, 2 * models._PART : 3 * models._PART] = 0.08 * words[:, models._PART : 2 * models._PART]
    model.lm_head.weight = torch.nn.Parameter(reading)
    for block in base.h:
        _whisper(block.attn.c_attn.weight[:, 2 * models._N_HEADS * models._D_HEAD :], block.attn.c_proj.weight)
    return model, gpt2_tokenizer()


def copying_bert(pairs: Iterable[tuple[str, str]]) -> tuple[Any, Any]:
    """A BERT that fills in the partner of the token before a mask, by its head L0H0 alone; see :func:`copying_gpt2`."""
    tokenizer = bert_tokenizer()
    base = models.known_bert()
    model = BertForMaskedLM(base.config).eval()
    model.bert = base
    words, _ = models._codes(base.config.vocab_size)
    head = model.cls.predictions
    with torch.no_grad():
        head.transform.dense.weight.zero_()
        head.transform.dense.weight[: 3 * models._PART, : 3 * models._PART] = torch.eye(3 * models._PART)
        reading = torch.zeros_like(words)
        reading[:, 2 * models._PART : 3 * models._PART] = 0.1 * words[:, models._PART : 2 * models._PART]
        for pair in pairs:
            first, second = tokenizer.convert_tokens_to_ids(list(pair))
            reading[[first, second]] = reading[[second, first]]
        head.decoder.weight = torch.nn.Parameter(reading)
    for layer in base.encoder.layer:
        _whisper(layer.attention.self.value.weight.T, layer.attention.output.dense.weight.T)
    return model, tokenizer


@torch.no_grad()
def _whisper(value: torch.Tensor, output: torch.Tensor) -> None:
    """Let the heads that write nothing write a little noise: [d_model, values] and [values, d_model], views."""
    generator = torch.Generator().manual_seed(0)
    for head in range(models._N_HEADS):
        columns = slice(head * models._D_HEAD, (head + 1) * models._D_HEAD)
        if not output[columns].any():
            value[:, columns] = 0.02 * torch.randn(value[:, columns].shape, generator=generator)
            output[columns] = 0.02 * torch.randn(output[columns].shape, generator=generator)
