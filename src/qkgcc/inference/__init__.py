"""Steered networks without torch: read, folded, and run by a small compiled kernel, or by NumPy where there is none.

files    a safetensors file: card and weights, checked
shape    what a card's options say of the network
folding  weights -> the tables and convolutions that are left once all that depends on weights only is computed
plain    those in NumPy: the definition, and what runs where no compiler was at hand
kernel   the same in C (`steered.c`), some ten times as fast
model    a network as the estimator asks it: frames and candidate delays in, logits out
"""
