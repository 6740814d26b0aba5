"""How the model at hand is quantized: what its config says, by the names of the class that is built.

Reader: asks the live module for its renamings. What the config's words mean is `quantization_config`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from transformers import PretrainedConfig, PreTrainedModel

from bayplan.schemas.quantization_config import read_scheme
from bayplan.schemas.quantization_values import method_of
from bayplan.skeleton import transformers_adapter
from bayplan.skeleton.config import quantization_values

if TYPE_CHECKING:
    from torch import nn

    from bayplan.schemas.quantization import Scheme


def model_scheme(config: PretrainedConfig, module: nn.Module, *, dtype: str, where: str) -> Scheme | None:
    """Return how the checkpoint of a model is quantized; None: it is not.

    Args:
        config: Of the model.
        module: The model, built with plain layers.
        dtype: Short name of the data type that it is built in.
        where: The model, for messages.

    Raises:
        QuantizationError: As `read_scheme`.
    """
    whole, text = (quantization_values(part) for part in (config, config.get_text_config(decoder=True)))
    values = whole or text
    if values is None:
        return None
    scheme = read_scheme(values, dtype=dtype, where=where)
    if not isinstance(module, PreTrainedModel):
        return scheme
    skipped = transformers_adapter.own_skips(module, method_of(values), scheme.not_converted)
    inside = "" if whole else _text_model(module)
    return msgspec.structs.replace(scheme, not_converted=skipped, inside=inside)


def _text_model(module: PreTrainedModel) -> str:
    """Return the path of the text model, whose config says how it, and nothing else, is quantized."""
    config = module.config.get_text_config(decoder=True)
    return next(
        (name for name, part in module.named_modules() if getattr(part, "config", None) is config), ""
    )
