"""The resolution of figures, in whose pixels their layout is measured."""

DPI = 150
