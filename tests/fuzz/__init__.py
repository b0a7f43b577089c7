"""Fuzzers: whatever is given, an answer or an `InputError`, in 5 s and 500 MB.

    make fuzz SECONDS=600                                   # from the root of the repository, on Linux
    make fuzz SECONDS=10000 INPUTS=1e6 REPORT=benchmarks/results/fuzz.md
    PYTHONPATH=tests python -m fuzz --only sound --seconds 60
    PYTHONPATH=tests python -m fuzz --replay sound "('wav', 'path', [('cut', 44, 0)])"

Inputs are drawn by hypothesis, which is pure Python, a dependency of the tests already, and finds the smallest input
that still fails. (atheris follows the coverage of Python code. Much of what is fuzzed here is C, of which it sees
nothing, and it needs a build of its own for each Python and system.)

An input is a Python literal: edits of a valid file, or names of values in a pool. So one that failed is a line of text,
printed and written to `tests/fuzz/found`. Once it is mended, the line moves to `tests/fuzz/seeds`, and `make test` runs
it ever after, with a short run of every target.

`targets`: what is fuzzed. `engine`: batches of inputs under limits of time and memory. `campaign`: processes that share
a long run, and its report.
"""
