"""How heads are named and selected."""

import numpy as np
import pytest

from attnviz.errors import UsageError
from attnviz.models.head_ids import HeadId, all_heads, head_named, one_stack, select_heads

STACK = one_stack(range(6), 12)


def names(*selections: str, n_layers: int = 6, n_heads: int = 12) -> list[str]:
    return [str(head) for head in select_heads(selections, [one_stack(range(n_layers), n_heads)])]


def test_heads_print_sort_and_are_read_again():
    heads = [HeadId(2, 8), HeadId(2, 10), HeadId(10, 0)]
    assert [str(head) for head in heads] == ["L2H8", "L2H10", "L10H0"]
    assert [head.file_stem for head in heads] == ["L02H08", "L02H10", "L10H00"]
    assert all_heads(2, 3) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for head in all_heads(3, 12):
        assert HeadId.parse(str(head)) == HeadId.parse(head.file_stem) == head
    forms = "L2H8", "l2h8", "2.8", "L2.8", "2H8", " L2H8 ", "L02H08"
    assert {HeadId.parse(text) for text in forms} == {HeadId(2, 8)}
    given = (*forms, HeadId(2, 8), (2, 8), HeadId(np.int64(2), np.int64(8)))
    assert {head_named(each, [STACK]) for each in given} == {HeadId(2, 8)}


@pytest.mark.parametrize(
    ("selections", "expected"),
    [
        ("L2H8 2.8 l2h8", ["L2H8"]),
        ("L0H0", ["L0H0"]),
        ("L5H11", ["L5H11"]),
        ("L2 L2H*", [f"L2H{h}" for h in range(12)]),
        ("L0-1 L0-L1", [f"L{la}H{h}" for la in (0, 1) for h in range(12)]),
        ("L3-3", [f"L3H{h}" for h in range(12)]),
        ("L*H8 *.8", [f"L{la}H8" for la in range(6)]),
        ("L2H3-5 L2H3-H5", ["L2H3", "L2H4", "L2H5"]),
        ("L1-2H3-4", ["L1H3", "L1H4", "L2H3", "L2H4"]),
        ("2.8,L0H1,L2H8", ["L0H1", "L2H8"]),
        ("L* L*H* *.* L0-5", [str(head) for head in all_heads(6, 12)]),
    ],
)
def test_selection_in_every_form(selections, expected):
    for selection in selections.split():
        assert names(f" {selection} ") == expected


def test_one_selection_may_stand_without_a_list_and_a_head_id_for_its_text():
    assert select_heads("L1H2", [STACK]) == select_heads(["L1H2"], [STACK]) == [HeadId(1, 2)]
    assert select_heads("L1H2,L0H3", [STACK]) == [HeadId(0, 3), HeadId(1, 2)]
    assert select_heads(HeadId(1, 2), [STACK]) == select_heads([HeadId(1, 2)], [STACK]) == [HeadId(1, 2)]


LONG = "L0H" + "9" * 5000
REFUSED = [
    *(
        (HeadId.parse, text, "expected a head")
        for text in ("", "L2", "2", "H8", "L2H", "2-8", "L2H8H9", "L*H8", "L-1H8", "two", "2.8.1", LONG)
    ),
    *(
        (names, text, "cannot read the selection")
        for text in ("", "2", "H8", "L", "foo", "L2H", "L2H8H9", "L-1", "L2H-1", "L2,", "L1.5.2", "L2-*", "L2 H8",
                     "L2;L3", LONG)
    ),
    *((names, text, "layers 0 to 5") for text in ("L6H0", "L6", "L0-6", "L2H8,L6H0")),
    *((names, text, "heads 0 to 11") for text in ("L0H12", "2.12", "L*H12")),
    *((names, text, "backwards") for text in ("L3-1", "L2H5-3")),
    *((lambda each: select_heads(each, [STACK]), each, "expected a list") for each in (5, None, 1.5, True)),
    *(
        (lambda each: select_heads(each, [STACK]), each, "among them")
        for each in ([5], [None], (1, 8), [(1, 8)], [b"L1H8"], b"L1", ["L1", 2])
    ),
    *(
        (lambda each: head_named(each, [STACK]), each, "expected a head")
        for each in ("map", "L2", None, 5, ["L2H8"], (2,), (2, 8, 1), (2.0, 8), (True, 8), HeadId(-1, 0), (0, -1))
    ),
    *(
        (lambda each: head_named(each, [STACK]), each, "L0H0 to L5H11")
        for each in ("L6H0", "0.12")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("read", "given", "word"), REFUSED)
def test_what_is_no_head_and_no_selection_is_refused(read, given, word):
    with pytest.raises(UsageError, match=word):
        read(given)
