"""Whether the parts that a declaration names fit together: by their shapes alone, before anything is computed."""

from typing import Any

from torch import nn

from attnviz.models.families.base import Architecture, LayerModules


def check_fit(architecture: Architecture, base_model: Any) -> None:
    """Raise ArchitectureError, which names the attribute, for a declaration that does not fit a bare model."""
    if architecture.pre_norm and architecture.final_norm(base_model) is None:
        raise architecture.misfit("final_norm_at", "expected the path of the norm that pre_norm needs after all layers")
    if architecture.positions_after_padding and base_model.config.pad_token_id is None:
        raise architecture.misfit("positions_after_padding", "but its config has no pad_token_id; try False")
    for number, layer in enumerate(architecture.modules(base_model)):
        if not architecture.pre_norm and None in (layer.attention_norm, layer.feed_forward_norm):
            raise architecture.misfit("pre_norm", f"without norms after residuals in {architecture.norm_names}; try True")
        if layer.attends:
            _check_attention(architecture, layer, *architecture.head_counts(base_model.config, number))


def _check_attention(architecture: Architecture, layer: LayerModules, n_heads: int, n_shared: int) -> None:
    d_model = _widths(architecture, "projection_names", layer.o_proj)[1]
    maps = [_widths(architecture, "projection_names", module) for module in layer.projections]
    for module, side in ((layer.up_proj, 0), (layer.gate, 0), (layer.down_proj, 1)):
        if module is not None and _widths(architecture, "network_names", module)[side] != d_model:
            raise architecture.misfit("network_names", f"which do not lead from {d_model} numbers and back")
    if len(maps) == 2:  # MLA: of narrower vectors
        return
    if any(width != d_model for width, _ in maps):
        raise architecture.misfit("projection_names", f"of which the last alone may read other than {d_model} numbers")
    if len(maps) == 3 and maps[0][1] * n_shared != maps[1][1] * n_heads:
        raise architecture.misfit("projection_names", f"which do not give {n_heads} queries and {n_shared} keys one width")
    d_head = maps[0][1] // (n_heads if len(maps) == 3 else n_heads + 2 * n_shared)
    for norm in layer.head_norms:
        weight = getattr(norm, "weight", None)
        if weight is None:
            continue
        if weight.ndim > 1 and not architecture.norm_kind.startswith("layer"):
            raise architecture.misfit("norm_kind", "but norms of queries and keys have weights a head; try 'layer'")
        if isinstance(norm, nn.Linear) or weight.shape[-1] not in (d_head, n_heads * d_head, n_shared * d_head):
            raise architecture.misfit("head_norm_names", f"which are no norms of heads of {d_head} numbers")


def _widths(architecture: Architecture, attribute: str, module: Any) -> tuple[int, int]:
    """What a linear map, or transformers' Conv1D, reads and gives."""
    if hasattr(module, "nf"):
        return module.nx, module.nf
    if not hasattr(module, "in_features"):
        raise architecture.misfit(attribute, f"but a {type(module).__name__} is no linear map")
    return module.in_features, module.out_features
