"""Answers to the same ten recordings, by which a change that must not change answers is checked.

    python -m golden --write before.json      # in tests/, with the code before
    python -m golden --compare before.json    # with the code after, on the same machine: equal to the bit

`tests/test_golden.py` compares with `answers.json` here, which was made on one processor, within a tolerance that holds
on any other.
"""
