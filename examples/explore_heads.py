"""attnviz from Python, cell by cell: run it whole, or open it as a notebook (``# %%`` cells).

Needs attnviz with the extra "demo".
"""

# %% One sentence, every head of a real BERT, recomputed and verified
import attnviz

analysis = attnviz.analyze("The cat that I saw ran away", model="minilm")
print(analysis)
print(analysis.report(top=5))

# %% How closely do the recomputed heads agree with the model?
for check in analysis.verification.layers:
    print(f"layer {check.layer}: weights within {check.pattern_error:.1e}, outputs within {check.output_error:.1e}")

# %% The heads of one kind, with their evidence
for head in analysis.heads:
    if head.label == "previous-token":
        evidence = head.labelled.verdict
        print(head.id, f"{evidence.score:.2f} (uniform {evidence.baseline:.2f}, n = {evidence.n})")

# %% The pattern itself is a tensor: rows attend to columns
pattern = analysis.pattern("L1H8")
labels = analysis.units.labels
for query, row in zip(labels, pattern, strict=True):
    print(f"{query:>6} -> {labels[int(row.argmax())]} ({row.max():.2f})")

# %% Figures are matplotlib figures; in a notebook, `analysis` alone shows overview and tables
analysis.figure("heads", select="L1H8").savefig("next-token-head.png")

# %% A model of your own, already in memory (here the same weights, loaded with transformers' default attention)
from transformers import AutoModel, AutoTokenizer  # noqa: E402

from attnviz.models.sources import find_checkpoint  # noqa: E402

folder = find_checkpoint("minilm").folder
model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
again = attnviz.analyze("The cat that I saw ran away", model=model, tokenizer=tokenizer)
print(again.head("L1H8").label, "- and the model is still set to", model.config._attn_implementation)
