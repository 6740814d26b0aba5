"""How much work a calibration does: sizes of files, blocks and matrices, and how often each is timed."""

from __future__ import annotations

import msgspec


class BlockSize(msgspec.Struct, frozen=True, kw_only=True):
    """A Llama block, and of how many of them two models are that are compared."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    fewer: int
    """Blocks of the smaller model: their weights are larger than a CPU's caches."""
    more: int
    """Blocks of the larger model."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults take less than a minute and 0.6 GB of memory."""

    file_bytes: int = 512 * 2**20
    """Of the file that the disk is measured with: a disk's own cache does not decide."""
    small_read_bytes: int = 8 * 2**20
    """Of a small block in it."""
    large_read_bytes: int = 64 * 2**20
    """Of a large block in it."""
    reads: int = 9
    """Blocks of each size that are read."""
    tiny: BlockSize = BlockSize(
        hidden_size=64, intermediate_size=256, num_heads=4, num_kv_heads=4, head_dim=16, fewer=2, more=18
    )
    """A block whose bytes take no time."""
    narrow: BlockSize = BlockSize(
        hidden_size=576, intermediate_size=1536, num_heads=9, num_kv_heads=3, head_dim=64, fewer=8, more=16
    )
    """As small as blocks of real models are: SmolLM2-135M's."""
    wide: BlockSize = BlockSize(
        hidden_size=2048, intermediate_size=8192, num_heads=32, num_kv_heads=8, head_dim=64, fewer=1, more=2
    )
    """With matrices that are read at full speed: Llama-3.2-1B's."""
    context: int = 2048
    """Positions in the longer cache: enough for it to be seen beside the weights."""
    steps: int = 31
    """Timed steps of a small model: more than of the rest, since a busy machine disturbs short runs more."""
    repeats: int = 15
    """Timed runs of everything else."""
    matrix_side: int = 4096
    """Rows and columns of a matrix."""
    product_rows: int = 512
    """Rows multiplied by it at a time to find the rate of operations."""
    large_side: int = 16_384
    """Of a matrix that is large even for an accelerator."""
    small_copy_bytes: int = 2**20
    """Copied over a link in one go."""
    large_copy_bytes: int = 128 * 2**20
    """Likewise."""


QUICK = Effort(
    file_bytes=128 * 2**20, large_read_bytes=32 * 2**20, reads=5, steps=7, repeats=3, product_rows=128
)
"""Some seconds, and coarser."""
