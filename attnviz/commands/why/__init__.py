"""The command ``attnviz why``: one attention score as a sum over what queries and keys are made of."""
