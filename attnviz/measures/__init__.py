"""What is measured: sums over rows, texts and corpora."""
