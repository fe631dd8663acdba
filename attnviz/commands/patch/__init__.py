"""The command ``attnviz patch``: what each head carries from one prompt into another."""
