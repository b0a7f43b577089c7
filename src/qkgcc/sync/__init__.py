"""What an array needs before it can be used: one clock, and microphones where they are said to be.

Clocks: `synchronise` finds how recorders stand to each other, `alignment` puts them on one clock. Places: `moments` are
delays over a walk, `refine` fits microphones to them by `wavefronts`, `observability` names what a walk cannot tell.
"""
