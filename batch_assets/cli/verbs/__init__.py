"""One file per verb: `verbs/x.py` holds the command `x` with its options, its work and what it prints.

To add a verb, add its file: the group finds it by its name. Its function has the verb's name; the first sentence of
that function's docstring is the verb's line in `batch-assets --help`.
"""
