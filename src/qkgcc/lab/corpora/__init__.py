"""Where sounds come from: corpora on disk, their download, and banks made from them.

    download -> sets (utterances and their splits) -> packing (silence removed, encoded) -> banks

Training and the benchmarks read banks only: `Bank.load(path)`. The other modules are needed to make one.
"""
