"""QK-GCC without torch, steered and published: read, folded, and run by a small compiled kernel, or by NumPy.

files    a safetensors file: card and weights, checked
shape    what a card's options say of the network
folding  weights -> the tables and convolutions that are left once all that depends on weights only is computed
plain    those in NumPy: the definition, and what runs where no kernel was compiled
kernel   the same in C (`steered.c`), some ten times as fast
light    what both kinds of networks have: their file, their shape, what runs them
batches  frames of a batch shared between threads
model    a steered network as the estimator asks it: frames and candidate delays in, logits out
published  the published one, likewise
"""
