"""Whether the parts that a declaration names fit together: by their shapes alone, before anything is computed."""

from collections.abc import Iterator
from typing import Any

from attnviz.models.families.base import Architecture, LayerModules


def check_fit(architecture: Architecture, base_model: Any) -> None:
    """Raise ArchitectureError, which names the attribute, for a declaration that does not fit a bare model."""
    for number, layer in enumerate(architecture.modules(base_model)):
        if not architecture.pre_norm and None in (layer.attention_norm, layer.feed_forward_norm):
            raise architecture.misfit("pre_norm", "but norm_names have none after residuals; try True")
        if layer.attends:
            counts = architecture.head_counts(base_model.config, number)
            for attribute, why in _misfits(architecture, layer, *counts):
                raise architecture.misfit(attribute, why)


def _misfits(architecture: Architecture, layer: LayerModules, n_heads: int, n_shared: int) -> Iterator[tuple[str, str]]:
    def widths(attribute: str, module: Any) -> tuple[int, int]:
        if hasattr(module, "nf"):  # transformers' Conv1D
            return module.nx, module.nf
        if hasattr(module, "in_features"):
            return module.in_features, module.out_features
        raise architecture.misfit(attribute, f"but a {type(module).__name__} is no linear map")

    *maps, (_, d_model) = (widths("projection_names", each) for each in (*layer.projections, layer.o_proj))
    if len(maps) != 2 and any(width != d_model for width, _ in maps):  # of MLA they read narrower vectors
        yield "projection_names", f"of which the last alone may read other than {d_model} numbers"
    if len(maps) == 3:
        wide = maps[0][1] * n_shared / (maps[1][1] * n_heads)  # queries, as multiples of keys
        if wide != 1 + architecture.gated and wide in (1, 2):
            yield "gated", f"but W_Q gives {wide:g} numbers for each of a key; try {not architecture.gated}"
        if wide not in (1, 2):
            yield "projection_names", f"which give {n_heads} queries and {n_shared} keys of unlike widths"
    for module, side in ((layer.up_proj, 0), (layer.gate, 0), (layer.down_proj, 1)):
        if module is not None and widths("network_names", module)[side] != d_model:
            yield "network_names", f"which do not lead from {d_model} numbers and back"
    for norm in layer.head_norms:
        weight: Any = getattr(norm, "weight", None)
        if hasattr(norm, "in_features"):
            yield "head_norm_names", "which are linear maps"
        elif weight is not None and weight.ndim > 1 and "rms" in architecture.norm_kind:
            yield "norm_kind", "but heads have norms of their own; try 'layer'"
