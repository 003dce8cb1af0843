"""Networks, loading and saving of weights, and encoding in memory.

Importing the package registers the methods, in the order in which help texts list them.
"""

from graphformers.model import network  # noqa: F401, I001  (graphformers)
from graphformers.model import aggregators  # noqa: F401  (plm, gat, max, mean, att)
from graphformers.model import node_id_baselines  # noqa: F401  (tnve, iftn)
