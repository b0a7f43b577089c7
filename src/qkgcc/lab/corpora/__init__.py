"""Where sounds come from: corpora on disk, their download, and banks made from them.

    download -> librispeech, musan -> corpora (utterances and their splits) -> silence -> packing -> banks

A bank is all that training and the benchmark read: `Bank.load(path)`. The rest is needed only to make one.
"""
