"""Make the profile of minilm that ships with attnviz: numbers, and the sentences of its examples with their licence.

    python examples/make_shipped_profile.py en_ewt-ud-dev.conllu [gap-development.tsv] [--out attnviz/data/profiles]

The document is profile.json's, with three differences that keep it small and at home anywhere: the matrices are
rounded to four decimals (roles are not, since they are shown with three, and would be rounded twice), roles that heads
do not have are left out (their scores stand in the matrices), and corpora are named without their folders. The examples
say under which licence their sentences are. The same corpora give the same file.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from attnviz import profile_heads
from attnviz.models.sources import find_checkpoint
from attnviz.profiles.store import profile_file_name

SHIPPED = Path(__file__).resolve().parents[1] / "attnviz" / "data" / "profiles"

SOURCES = {
    ".conllu": "Universal Dependencies English Web Treebank (CC BY-SA 4.0)",
    ".tsv": "GAP, Webster et al. 2018 (Apache 2.0)",
}
"""Whom to thank, by the kind of corpus; for the note in the file."""

LICENCES = {
    ".conllu": "sentences of the Universal Dependencies English Web Treebank v2.15, "
    "https://github.com/UniversalDependencies/UD_English-EWT, under CC BY-SA 4.0, "
    "https://creativecommons.org/licenses/by-sa/4.0/",
    ".tsv": "passages of GAP, Webster et al. 2018, https://github.com/google-research-datasets/gap-coreference, under "
    "Apache 2.0",
}
"""Where sentences of examples come from and under which licence, by the kind of corpus."""


_WHOLE = ("verification", "roles")
"""Keys whose numbers are not rounded."""


def shipped(document: dict[str, Any], corpora: list[Path]) -> dict[str, Any]:
    """The document as it ships."""
    sources = "; ".join(SOURCES.get(path.suffix, path.name) for path in corpora)
    named = {path.name: LICENCES[path.suffix] for path in corpora if path.suffix in LICENCES}
    examples = document["examples"] or {"texts": []}
    quoted = {text["corpus"] for text in examples["texts"]}
    return {
        **{key: value if key in _WHOLE else rounded(value) for key, value in document.items()},
        "corpora": [{**corpus, "path": Path(corpus["path"]).name} for corpus in document["corpora"]],
        "roles": [role for role in document["roles"] if role["holds"]],
        "examples": {**examples, "licences": {name: text for name, text in named.items() if name in quoted}},
        "note": f"Measured on: {sources}. Roles that heads do not have are left out; matrices have four decimals.",
    }


def rounded(value: Any) -> Any:
    """Every number below to four decimals."""
    if isinstance(value, dict):
        return {key: rounded(below) for key, below in value.items()}
    if isinstance(value, list):
        return [rounded(below) for below in value]
    return round(value, 4) if isinstance(value, float) else value


def main(
    corpora: Annotated[list[Path], typer.Argument(help="A .conllu treebank, and perhaps GAP's .tsv.")],
    model: Annotated[str, typer.Option(help="Built-in name.")] = "minilm",
    out: Annotated[Path, typer.Option(help="Folder for the profile.")] = SHIPPED,
    limit: Annotated[int | None, typer.Option(help="Sentences of each corpus; default all.")] = None,
) -> None:
    """Measure, and write the one file that the model's earlier profile in the folder gives way to."""
    profile = profile_heads(find_checkpoint(model), corpora, repeats=True, limit=limit, device="cpu")
    document = shipped(profile.document(), corpora)
    out.mkdir(parents=True, exist_ok=True)
    path = out / profile_file_name(document)
    path.write_text(json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes, {len(document['roles'])} roles")


if __name__ == "__main__":
    typer.run(main)
