"""The form ``attnviz heads --each-line``: several texts in one run, and what varies between them."""
