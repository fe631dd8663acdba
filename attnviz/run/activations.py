"""The tensors of a verified text, by the names of :data:`attnviz.run.sites.SITES`."""

from dataclasses import replace

import torch
from torch import Tensor

from attnviz.reference import attention
from attnviz.run.sites import COMPUTED, OF_HEADS, at_named, place_of
from attnviz.run.verify import VerifiedAttention, verify_attention


def activation(verified: VerifiedAttention, name: str, layer: int) -> Tensor:
    """The tensor of a site of a layer, without the axis of the batch, on the CPU; see :meth:`Analysis.activation`.

    The sites of heads are recomputed from the verified inputs of the layer, others read in a pass that is verified.
    """
    checkpoint = verified.checkpoint
    layer = checkpoint.layer_of(layer)
    if name not in COMPUTED:
        place_of(checkpoint, layer, name)
    heads, parameters, value = verified.recomputed(layer)
    if name not in (*COMPUTED, *OF_HEADS):
        seen = list[Tensor]()
        with at_named(checkpoint, [(layer, name)], lambda _, tensor: seen.append(tensor)):
            verify_attention(
                checkpoint, verified.tokens, target=verified.target, memory=verified.memory, keep_outputs=False
            )
        return seen[-1][0].cpu()
    x, source = verified.inputs_of(layer)
    queries = slice(None) if verified.queries is None else list(verified.queries)
    with torch.inference_mode(), torch.autocast(x.device.type, enabled=False):
        if name in ("q", "k", "v"):
            projection = {"q": parameters.query, "k": parameters.key, "v": parameters.value}[name]
            projected = attention.project(x if name == "q" else source, replace(projection, clip=None))
            return projected[0].transpose(0, 1).cpu()
        if name == "scores":
            return heads.scores()[0, :, queries].cpu()
        pattern = heads.rows(0, heads.query.shape[-2], heads.key.shape[-2])
        if name == "pattern":
            return pattern[0, :, queries].cpu()
        z = attention.gated(torch.matmul(pattern, value.to(pattern)), x, parameters)[:, :, queries]
        written = z if name == "z" else torch.matmul(z, parameters.output_weight.to(z))
        return written[0].transpose(0, 1).cpu()
