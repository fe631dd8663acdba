#!/usr/bin/env bash
# A walk through `attnviz heads`, from one sentence to a figure for a paper.
# Needs attnviz with the extra "demo"; writes into ./attnviz-walkthrough.
set -euo pipefail
out=attnviz-walkthrough

# 1. Every head of MiniLM on one sentence: verified, measured, drawn, labelled.
attnviz heads "The cat that I saw ran away" -o "$out/first"

# 2. Two heads only, as vector pictures for a paper.
attnviz heads "The cat that I saw ran away" --select L0H2 --select L1H8 --format svg --format pdf -o "$out/paper"

# 3. Is a difference rounding or an error? Rounding all but disappears in float64.
attnviz heads "The cat that I saw ran away" --dtype float64 --figures none -o "$out/float64" | grep "^Checked"

# 4. Words instead of word pieces, and a sentence pair.
attnviz heads "Unbelievably, the antidisestablishmentarians agreed." --words --select L1 -o "$out/words"
attnviz heads "Where is the cat?" --pair "It ran away." --figures overview -o "$out/pair"

# 5. The numbers, for your own script: the heads that look at the next token.
attnviz heads "The cat that I saw ran away" --json --quiet --figures none -o "$out/numbers" |
  python -c '
import json, sys
for head in json.load(sys.stdin)["heads"]:
    if head["label"] == "next-token":
        print(head["id"], round(head["next"], 2), "uniform", round(head["baseline"]["next"], 2))
'

# 6. A longer text from standard input.
printf '%s\n' "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do." |
  attnviz heads - --top 5 --figures overview -o "$out/alice"
