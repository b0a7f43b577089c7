"""The networks in torch: `QKGCC` is the paper's; `Steered`, which the general networks are, asks it for any delay;
`NGCC`, `PGCC` and `Transformer` are what it is compared with. `checkpoint.load` reads any of them from its file."""

from qkgcc.nets import checkpoint
from qkgcc.nets.ngcc import NGCC
from qkgcc.nets.pgcc import PGCC
from qkgcc.nets.qkgcc import QKGCC
from qkgcc.nets.steered import Steered
from qkgcc.nets.transformer import Transformer

__all__ = ["NGCC", "PGCC", "QKGCC", "Steered", "Transformer", "checkpoint"]
