"""QK-GCC without torch, steered and published: read, folded, run by a small compiled kernel or by NumPy, and exported.

files        a safetensors file: card and weights, checked
shape        what a card's options say of the network
folding      weights -> the tables and convolutions that are left once all that depends on weights only is computed
reference    those in NumPy: the definition, and what runs where no kernel was compiled
kernel       the same in C (`steered.c`), some ten times as fast
steering     windows of a frame before the network, and what steers its evidence to delays behind
base         what both kinds of networks have: their file, their shape, what runs them, batches shared by threads
steered      a steered network as the estimator asks it: frames and candidate delays in, logits out
published    the published one, likewise
onnx_export  either of them as one ONNX file, for programs in other languages; onnx_graph has its nodes
"""

from qkgcc.core.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qkgcc.network.published import PublishedModel
    from qkgcc.network.registry import pretrained
    from qkgcc.network.steered import SteeredModel

__all__ = ["PublishedModel", "SteeredModel", "pretrained"]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "PublishedModel": "qkgcc.network.published",
        "SteeredModel": "qkgcc.network.steered",
        "pretrained": "qkgcc.network.registry",
    },
)
