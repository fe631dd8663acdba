"""What attnviz is measured against: transformers alone, one eager forward pass of a checkpoint.

python -m tests.benchmarks.plain FOLDER TEXT attentions|none
"""

import sys
import time

import torch
from transformers import AutoModel, AutoTokenizer

from tests.benchmarks.measure import peak_memory

if __name__ == "__main__":
    folder, text, attentions = sys.argv[1:]
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    begin = time.perf_counter()
    with torch.inference_mode():
        model(**inputs, output_attentions=attentions == "attentions")
    print(time.perf_counter() - begin, peak_memory())
