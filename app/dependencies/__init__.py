"""Dependencies: which job waits for which. Written when jobs come in, read when one ends (maintenance/releasing.py)."""
