"""What is wrong with a recording: "it works in simulation but not on my recording", answered.

    all of the recording -> `channels`: dead or quiet channels, clipping, offset of zero
    an excerpt of five minutes at most -> hum; `pairs`: copies, unrelated sounds, gains
    delays of the pairs over time -> polarity, offset, drift, spacing; `arrays`: order and geometry

The threshold of each check lies between what clean recordings show (the bundled ones, real and simulated rooms, a
real head) and what recordings show that were given that fault on purpose; the numbers stand beside it. What follows
from another fault is not reported: a dead channel has no polarity.
"""

from qkgcc.doctor.diagnose import diagnose
from qkgcc.doctor.findings import CODES, Diagnosis, Finding

__all__ = ["CODES", "Diagnosis", "Finding", "diagnose"]
