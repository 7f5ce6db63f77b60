"""The one legend of dimension letters, and the array types of public signatures.

| letter  | meaning                       | letter | meaning                              |
| ------- | ----------------------------- | ------ | ------------------------------------ |
| `b`     | batch                         | `k`    | key (feature) width of one head      |
| `t`     | time, in tokens               | `v`    | value width of one head              |
| `d`     | model width                   | `c`    | chunk of time                        |
| `h`     | heads                         | `n`    | number of chunks                     |
| `g`     | key/value heads (`g` | `h`)   | `w`    | window or filter width, in tokens    |
| `f`     | features of a feature map     | `m`    | labelled positions of an example     |
| `vocab` | vocabulary (with its padding) |        |                                      |

Sequences are `b t ...` with heads after time, as in `jax.nn.dot_product_attention`; recurrent states are
`b h k v`. Inside a function a suffix names the layout only where the layout changes (`q_nbhck`).
"""

from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

__all__ = ["Array", "Bool", "Float", "Int", "PRNGKeyArray"]
