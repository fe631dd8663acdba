"""Numbers by KV head: by the keys and values that one or several heads of a layer read (grouped-query attention)."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.present.documents import layer_entry
from attnviz.present.fields import Field, Table

KV_HEAD: Field[Any] = Field(name="kv_head", if_known=True, meaning="which keys and values it shares with other heads")


def kv_groups(model: Checkpoint) -> dict[tuple[int, int], list[HeadId]]:
    """The heads that read the keys and values of each KV head, by its layer and number there."""
    groups: dict[tuple[int, int], list[HeadId]] = {}
    for id in select_heads((), model.kinds):
        n_heads, n_kv_heads = model.head_counts(id.layer)
        groups.setdefault((id.layer, id.head * n_kv_heads // n_heads), []).append(id)
    return groups


def kv_head_field(model: Checkpoint) -> Field[Any]:
    """The KV head of a row's head, by number in the layer; left out where every head has its own."""
    numbers = {head: number for (_, number), heads in kv_groups(model).items() for head in heads if len(heads) > 1}
    return replace(KV_HEAD, value=lambda row: numbers.get(row.id))


def kv_table(model: Checkpoint, statistics: Mapping[str, Mapping[HeadId, float | None]]) -> Table[Any]:
    """A row a KV head: the mean of each statistic over its heads; None where one of these has no number."""
    rows = []
    for (layer, number), heads in kv_groups(model).items():
        row = {**layer_entry(layer), "kv_head": number, "heads": " ".join(map(str, heads))}
        for name, by_head in statistics.items():
            values = [value for value in map(by_head.get, heads) if value is not None]
            row[name] = fmean(values) if len(values) == len(heads) else None
        rows.append(row)
    fields = [Field[Any](name, name=name, detail=name in statistics) for name in rows[0]]
    return Table("KV heads", fields, rows, name="kv_heads")
