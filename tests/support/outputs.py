"""Small models whose heads write much, and what heads write computed again by transformers and numpy in float64."""

from typing import Any

import numpy as np
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel

from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

TOKENIZERS = {"bert": bert_tokenizer(), "gpt2": gpt2_tokenizer()}
N_LAYERS, N_HEADS, D_HEAD, D_MODEL = 3, 4, 8, 32


def model_of(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """With a language-modelling head, and with values and W_O beside which b_O does not drown the heads."""
    maker, model_class = {"bert": (sharp_bert, BertForMaskedLM), "gpt2": (sharp_gpt2, GPT2LMHeadModel)}[kind]
    model = maker(model_class=model_class)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("attention.self.value.weight", "attention.output.dense.weight", "attn.c_proj.weight")):
                parameter.mul_(10)
            if name.endswith("attn.c_attn.weight"):
                parameter[:, 2 * D_MODEL :].mul_(10)
    return model.to(dtype)


def sharper_gpt2(dtype: torch.dtype = torch.float32, bias: bool = False) -> Any:
    """Every norm, bias and feed-forward network matters, so that leaving any out shows."""
    model = sharp_gpt2(model_class=GPT2LMHeadModel)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" in name:
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
            elif "attn.c_proj.weight" in name:
                parameter.mul_(10)
            elif ".mlp." in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            elif "wte" in name or "wpe" in name:
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator) + 0.3)
        if bias:
            model.lm_head.bias = torch.nn.Parameter(torch.randn(400, generator=generator))
    return model.to(dtype).eval()


def own_numbers(kind: str, model: Any, text: str = SENTENCE) -> dict[str, Any]:
    """By layer: what the model attends, takes in and gives out, and its parameters, in float64."""
    model.set_attn_implementation("eager")
    given: list[np.ndarray] = []

    def numbers(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().double().numpy()

    def give(_: Any, __: Any, result: Any) -> None:
        given.append(numbers((result[0] if isinstance(result, tuple) else result)[0]))

    weights, handles = [], []
    layers = getattr(model, "bert", model).encoder.layer if kind == "bert" else getattr(model, "transformer", model).h
    for layer in layers:
        if kind == "bert":
            value, output = layer.attention.self.value, layer.attention.output.dense
            parts = value.weight.T, value.bias, output.weight.T, output.bias
        else:
            output, joined, dense = layer.attn, layer.attn.c_attn, layer.attn.c_proj
            parts = joined.weight[:, 2 * D_MODEL :], joined.bias[2 * D_MODEL :], dense.weight, dense.bias
        handles.append(output.register_forward_hook(give))
        weights.append([numbers(part) for part in parts])
    encoded = TOKENIZERS[kind](text, return_tensors="pt", return_special_tokens_mask=True)
    sink = [bool(flag) for flag in encoded.pop("special_tokens_mask")[0]]
    if kind == "gpt2":
        encoded.pop("token_type_ids", None)
        sink[0] = True
    with torch.no_grad():
        result = model(**encoded, output_attentions=True, output_hidden_states=True)
        streams = zip(layers, result.hidden_states, strict=False)
        taken = [numbers((x if kind == "bert" else layer.ln_1(x))[0]) for layer, x in streams]
    for handle in handles:
        handle.remove()
    patterns = [numbers(layer[0]) for layer in result.attentions]
    return {"taken": taken, "given": given, "weights": weights, "patterns": patterns, "sink": sink}


def of_head(own: dict[str, Any], layer: int, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """f(x_k), ||A[q, k] f(x_k)|| and the sum of A[q, k] f(x_k) over k, key by key."""
    W_V, b_V, W_O, _ = own["weights"][layer]
    mine = slice(head * D_HEAD, (head + 1) * D_HEAD)
    f = np.array([(x @ W_V[:, mine] + b_V[mine]) @ W_O[mine] for x in own["taken"][layer]])
    written = np.array(
        [[weight * f_k for weight, f_k in zip(row, f, strict=True)] for row in own["patterns"][layer][head]]
    )
    return f, np.linalg.norm(written, axis=-1), written.sum(1)
