"""What heads write: against loops over the model's own numbers in float64, and wrong sums that must not pass."""

import math
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import processors

import attnviz
from attnviz.commands.outputs import HeadOutputs
from attnviz.errors import VerificationError
from attnviz.measures import output_shares
from attnviz.measures.output_shares import measure_contributions
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.reference.tolerances import TOLERANCES
from tests.conftest import SENTENCE
from tests.support.models import bert_tokenizer
from tests.support.outputs import D_MODEL, N_HEADS, TOKENIZERS, model_of, of_head, own_numbers
from tests.support.tolerances import SHARP, SUMS_32

KINDS = ["bert", "gpt2"]
DTYPES = [*SHARP.items()]


def measured(kind: str, dtype: torch.dtype = torch.float32, text: str = SENTENCE, **options: Any) -> HeadOutputs:
    return attnviz.head_outputs(text, model_of(kind, dtype), tokenizer=TOKENIZERS[kind], **options)


@cache
def result_of(kind: str, dtype: torch.dtype = torch.float32) -> HeadOutputs:
    return measured(kind, dtype)


@cache
def own_of(kind: str, dtype: torch.dtype) -> dict[str, Any]:
    return own_numbers(kind, model_of(kind, dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "limit"), DTYPES)
def test_all_numbers_are_those_of_transformers_and_numpy_in_float64(kind, dtype, limit):
    own, result = own_of(kind, dtype), result_of(kind, dtype)
    C = [q for q, sink in enumerate(own["sink"]) if not sink]
    S = [k for k, sink in enumerate(own["sink"]) if sink]
    for layer, of_layer in enumerate(result.layers):
        every = [of_head(own, layer, head) for head in range(N_HEADS)]
        o, bias = own["given"][layer], own["weights"][layer][3]
        lengths = sum(np.linalg.norm(o[q]) for q in C)
        all_norms = sum(np.linalg.norm(output[q]) for _, _, output in every for q in C)
        for head, (f, norms, output) in enumerate(every):
            A, id = own["patterns"][layer][head], HeadId(layer, head)
            tensors = {"output": output, "norms": norms, "value_norms": np.linalg.norm(f, axis=1), "pattern": A}
            for name, expected in tensors.items():
                assert np.abs(getattr(result, name)(id).double().numpy() - expected).max() < limit, (id, name)
            numbers = {
                "norm": np.mean([np.linalg.norm(output[q]) for q in C]),
                "norm_share": sum(np.linalg.norm(output[q]) for q in C) / all_norms,
                "projection_share": sum(output[q] @ o[q] / np.linalg.norm(o[q]) for q in C) / lengths,
                "sink": np.mean([sum(A[q, k] for k in S) for q in C]),
                "sink_by_norm": np.mean([sum(norms[q, k] for k in S) / sum(norms[q]) for q in C]),
                "value_norm": np.mean([np.linalg.norm(f[k]) for k in C]),
                "value_norm_of_sinks": np.mean([np.linalg.norm(f[k]) for k in S]),
                "largest": norms.max(),
            }
            for name, value in numbers.items():
                assert getattr(result.head(id), name) == pytest.approx(value, abs=limit), (id, name)
        along = sum(bias @ o[q] / np.linalg.norm(o[q]) for q in C) / lengths
        assert of_layer.norm == pytest.approx(lengths / len(C), rel=limit)
        assert of_layer.bias_norm == pytest.approx(np.linalg.norm(bias), rel=limit)
        assert of_layer.bias_projection_share == pytest.approx(along, abs=limit)
        assert of_layer.sum_error < limit / 10
        assert of_layer.output_scale == pytest.approx(np.abs(o).max(), rel=SUMS_32)
        total = sum(result.output(HeadId(layer, head)) for head in range(N_HEADS)).double().numpy() + bias
        assert np.abs(total - o).max() / np.abs(o).max() < limit


def _without_the_second_head(right):
    calls = count()
    return lambda *of: right(*of) * (next(calls) != 1)


MUTANTS = {
    "no numbers": lambda right: lambda A, v, W, gate: right(A, v, W, gate) * math.nan,
    "a head left out": _without_the_second_head,
    "pattern transposed": lambda right: lambda A, v, W, gate: right(A.transpose(-1, -2), v, W, gate),
    "pattern uniform": lambda right: lambda A, v, W, gate: right(torch.full_like(A, 1 / A.shape[-1]), v, W, gate),
    "a bias in every head": lambda right: lambda A, v, W, gate: right(A, v, W, gate) + 0.1,
    "W_O reversed": lambda right: lambda A, v, W, gate: right(A, v, W.flip(-2), gate),
    "no mixing": lambda right: lambda A, v, W, gate: v @ W,
}


@pytest.mark.draws
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_outputs_do_not_pass(kind, mutant, monkeypatch):
    monkeypatch.setattr(attention, "head_outputs", MUTANTS[mutant](attention.head_outputs))
    with pytest.raises(VerificationError, match="layer 0"):
        measured(kind)


@pytest.mark.parametrize("part", ["output_bias", "output_weight"])
def test_wrong_parameters_do_not_pass(part, monkeypatch):
    right = output_shares.layer_contributions

    def wrong(*given):
        writing = right(*given)
        return replace(writing, **{part: 0.9 * getattr(writing, part)})

    monkeypatch.setattr(output_shares, "layer_contributions", wrong)
    with pytest.raises(VerificationError):
        measured("gpt2")


def test_a_model_that_changed_since_is_noticed():
    model = model_of("bert")
    result = attnviz.head_outputs(SENTENCE, model, tokenizer=TOKENIZERS["bert"])
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.self.query.weight.mul_(2)
    result.output("L0H0")
    with pytest.raises(VerificationError, match="layer 1"):
        result.norms("L1H0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_formats_are_measured_in_float32(kind, dtype):
    result = result_of(kind, dtype)
    output = result.output("L0H0")
    assert output.dtype == torch.float32
    (output * torch.ones(1, requires_grad=True)).sum().backward()  # no inference tensor
    assert max(layer.sum_error for layer in result.layers) <= TOLERANCES[dtype].output
    for head in result.select("L0"):
        assert head.norm == pytest.approx(result_of(kind).head(head.id).norm, rel=0.2)
    if result.effects is not None:
        assert 1e-6 < result.effects.error <= TOLERANCES[dtype].output


def test_a_text_without_content_has_no_shares_and_without_special_tokens_no_sinks():
    result = measured("gpt2", text="the")
    assert len(result.tokens) == 1
    head = result.heads[0]
    numbers = ("norm", "norm_share", "projection_share", "sink", "sink_by_norm", "value_norm")
    assert [getattr(head, name) for name in numbers] == [None] * 6
    assert head.value_norm_of_sinks > 0
    assert (result.layers[0].norm, result.layers[0].bias_projection_share) == (None, None)
    assert result.layers[0].sum_error < SUMS_32
    tokenizer = bert_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    bare = attnviz.head_outputs(SENTENCE, model_of("bert"), tokenizer=tokenizer)
    head = bare.heads[0]
    assert (head.sink, head.sink_by_norm, head.value_norm_of_sinks) == (None, None, None)
    assert head.norm_share is not None
    assert result.figure("heads")
    assert bare.figure("heads")


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_ranked_by_share_and_selected_in_that_order(kind):
    result = result_of(kind)
    assert result.heads == tuple(sorted(result.heads, key=lambda head: -head.projection_share))
    chosen = result.select(["L1", "0.2"])
    assert {str(head.id) for head in chosen} == {"L1H0", "L1H1", "L1H2", "L1H3", "L0H2"}
    assert [head.id for head in chosen] == [head.id for head in result.heads if head in chosen]


def test_only_one_head_of_a_layer_is_in_memory_at_a_time(monkeypatch):
    verified, shapes, right = result_of("bert").attention, [], attention.head_outputs
    monkeypatch.setattr(attention, "head_outputs", lambda *of: shapes.append(right(*of).shape) or right(*of))
    measure_contributions(verified, 0)
    assert shapes == [(len(verified.tokens), D_MODEL)] * N_HEADS
