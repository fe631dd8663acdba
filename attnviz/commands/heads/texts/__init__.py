"""The form ``attnviz heads --each-line``: several texts in one run, and the spread between them."""
