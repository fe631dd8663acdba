"""Contacts of proteins: heads by hand that attend to them, ESM's own corrections, and files that are refused."""

import numpy as np
import pytest
import torch
from transformers.models.esm.modeling_esm import average_product_correct, symmetrize

import attnviz
from attnviz.errors import UsageError
from attnviz.measures.contacts import ContactMap, corrected
from tests.conftest import SENTENCE
from tests.support.relatives import checkpoint_of

PROTEIN = "MKTAYIAKQRQISF"
N = 32
PAIRS = [(1, 20), (2, 12), (3, 30), (5, 28), (8, 15), (10, 31)]
"""Residues in contact, counted from 1: as many as N / 5, 6 or more apart, one of them 24."""


def text_of(pairs, folder):
    file = folder / "contacts.txt"
    file.write_text("# i j\n" + "".join(f"{other} {one}\n" for one, other in pairs))
    return file


def matrix_of(matrix, folder):
    file = folder / "contacts.npy"
    np.save(file, matrix)
    return file


def pattern_of(pairs, n):
    """The first of each pair attends to the second, between two special tokens; all others to the first token."""
    pattern = torch.zeros(n + 2, n + 2)
    pattern[:, 0] = 1.0
    for one, other in pairs:
        pattern[one] = 0.0
        pattern[one, other] = 1.0
    return pattern


def test_a_head_that_attends_to_contacts_finds_all_of_them(tmp_path):
    contacts = ContactMap(text_of(PAIRS, tmp_path), [True, *[False] * N, True])
    found = contacts.statistics(pattern_of(PAIRS, N))
    precisions = {"contacts_l": 6 / 32, "contacts_l5": 1, "long_contacts_l": 1 / 32, "long_contacts_l5": 1 / 6}
    assert found == pytest.approx(precisions | {f"{name}_apc": value for name, value in precisions.items()})
    share, of_long = 6 / (26 * 27 / 2), 1 / (8 * 9 / 2)
    assert list(contacts.chance.values()) == pytest.approx([share] * 4 + [of_long] * 4)
    near = [(one, one + 1) for one, _ in PAIRS]
    assert contacts.statistics(pattern_of(near, N))["contacts_l5"] < 0.5


def test_matrices_of_contacts_and_of_distances_say_the_same_and_unknown_pairs_do_not_count(tmp_path):
    binary, distances = np.zeros((N, N)), np.full((N, N), 9.0)
    for one, other in PAIRS:
        binary[one - 1, other - 1] = 1
        distances[one - 1, other - 1] = distances[other - 1, one - 1] = 7.9
    np.fill_diagonal(distances, 0)
    unknown = distances.copy()
    unknown[0], unknown[:, 0] = np.nan, -1
    special = [False] * N
    chances = [ContactMap(matrix_of(each, tmp_path), special).chance for each in (binary, distances, unknown)]
    assert chances[0] == chances[1] == ContactMap(text_of(PAIRS, tmp_path), special).chance
    assert chances[2]["contacts_l"] == pytest.approx(5 / (25 * 26 / 2))


def test_pairs_of_two_chains_count_only_where_the_file_has_contacts_between_them(tmp_path):
    special = [True, *[False] * 16, True, *[False] * 16, True]
    apart = ContactMap(text_of([(1, 9), (18, 30)], tmp_path), special)
    assert apart.chance["contacts_l"] == pytest.approx(2 / (10 * 11))
    assert apart.chance["long_contacts_l"] is None
    between = ContactMap(text_of([(1, 9), (18, 30), (16, 17)], tmp_path), special)
    assert between.chance["contacts_l"] == pytest.approx(3 / (10 * 11 + 16 * 16))
    assert between.chance["long_contacts_l"] == pytest.approx(1 / (16 * 16))


def test_maps_are_corrected_as_esm_does_it():
    patterns = torch.rand(3, 9, 9).softmax(-1)
    torch.testing.assert_close(corrected(patterns, False), symmetrize(patterns))
    torch.testing.assert_close(corrected(patterns, True), average_product_correct(symmetrize(patterns)))
    assert corrected(torch.zeros(2, 4, 4), True).isfinite().all()


def test_heads_are_scored_by_their_maps_with_and_without_correction(tmp_path):
    checkpoint = checkpoint_of("esm")
    found = attnviz.analyze(PROTEIN, checkpoint, contacts=text_of([(1, 10)], tmp_path))
    pairs = torch.triu_indices(14, 14, 6)
    for before, after in zip(attnviz.analyze(PROTEIN, checkpoint).heads, found.heads, strict=True):
        assert before.statistics.items() <= after.statistics.items()
        for name, apc in (("contacts_l", False), ("contacts_l_apc", True)):
            scores = corrected(found.pattern(after.id)[1:-1, 1:-1], apc)
            highest = pairs.T[scores[tuple(pairs)].topk(14).indices].tolist()
            assert after.statistics[name] == pytest.approx(([0, 9] in highest) / 14)
    found = attnviz.analyze("MKTAYIAK:QRQISFMK", checkpoint, contacts=text_of([(1, 7)], tmp_path))
    assert [found.tokens.labels[at] for at in (8, 9, 10)] == ["K8", "<unk>", "Q9"]
    assert (found.tokens.n_unknown, found.tokens.special[9]) == (0, True)
    heads = found.document()["heads"]  # of 6 pairs all are among the 16 highest
    assert {head[name] for head in heads for name in ("contacts_l", "contacts_l_baseline")} == {1 / 6}


@pytest.mark.parametrize(
    "given",
    [
        [(1, 15)], [(0, 9)], [(1, 3)], [("A", 9)], [(1, "9 0.5")], [], None, np.zeros((3, 14)), np.full((14, 14), 0.5),
        np.array(["a"]), np.ones((14, 14), complex), "damaged",
    ],
)  # fmt: skip
def test_files_that_are_no_contacts_of_the_text_are_refused(given, tmp_path):
    """The numbers that the damaged file promises would fill the memory, if they were there."""
    file = tmp_path / "missing.npy"
    if isinstance(given, str):
        whole = matrix_of(np.zeros((14, 14)), tmp_path).read_bytes()
        file.write_bytes(whole.replace(b"(14, 14), }" + b" " * 11, b"(14, 100000000000), }" + b" "))
    elif given is not None:
        file = text_of(given, tmp_path) if isinstance(given, list) else matrix_of(given, tmp_path)
    with pytest.raises(UsageError) as error:
        attnviz.analyze(PROTEIN, checkpoint_of("esm"), contacts=file)
    assert "\n" not in str(error.value)


def test_only_encoders_and_whole_texts_have_maps_of_contacts():
    with pytest.raises(UsageError, match="contacts"):
        attnviz.analyze(SENTENCE, "tiny-gpt2", contacts="c.npy")
    with pytest.raises(UsageError, match="--queries"):
        attnviz.analyze(PROTEIN, checkpoint_of("esm"), queries=0, contacts="c.npy")
