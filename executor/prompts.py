"""Texts to a model's inputs and generated ids back to texts, with the tokenizer beside the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from bayplan.schemas.errors import BayplanError, UsageError
from bayplan.schemas.strict_json import quote
from bayplan.skeleton.config_file import FOREIGN_FAULTS, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from bayplan.executor.inputs import ModelInputs


class Prompts:
    """A checkpoint's tokenizer."""

    def __init__(self, folder: Path, *, trust_remote_code: bool) -> None:
        """Load the tokenizer of a checkpoint.

        Args:
            folder: Of the checkpoint.
            trust_remote_code: Run the tokenizer code that comes with it; for a checkpoint whose plan says so,
                with the user's consent.

        Raises:
            BayplanError: There is none, or it cannot be loaded.
        """
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=trust_remote_code, local_files_only=True
            )
        except FOREIGN_FAULTS as error:
            raise BayplanError(
                "no tokenizer for the prompts",
                where=str(folder),
                got=one_line(error),
                needed="the tokenizer's files beside the weights",
                hint="copy them there, or pass token ids with --inputs",
            ) from error
        self._tokenizer = cast("PreTrainedTokenizerBase", loaded)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding token; None: the tokenizer has none, nor an end token."""
        return cast("int | None", self._tokenizer.pad_token_id)

    def groups_to_generate(self, texts: Sequence[str], batch: int) -> list[ModelInputs]:
        """Return inputs for at most `batch` texts each, padded on the left to the longest of the group.

        Raises:
            BayplanError, UsageError: The texts cannot be tokenized, or one has no tokens.
        """
        starts = range(0, len(texts), batch)
        return [self._encode(texts[start : start + batch], side="left") for start in starts]

    def groups_to_embed(self, texts: Sequence[str], batch: int) -> list[ModelInputs]:
        """Return inputs for at most `batch` texts each, all padded on the right to the longest of all.

        Raises:
            BayplanError, UsageError: The texts cannot be tokenized, or one has no tokens.
        """
        whole = self._encode(texts, side="right")
        starts = range(0, len(texts), batch)
        return [{name: value[start : start + batch] for name, value in whole.items()} for start in starts]

    def decode(self, token_ids: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """Return the text of each list of ids, special tokens left out."""
        return tuple(str(self._tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in token_ids)

    def _encode(self, texts: Sequence[str], *, side: str) -> ModelInputs:
        """Return the tokens of texts.

        Raises:
            BayplanError: The tokenizer fails, or makes no ids.
            UsageError: A text has no tokens, so there is nothing to compute from.
        """
        try:
            encoded = self._tokenizer(
                list(texts), padding=len(texts) > 1, padding_side=side, return_tensors="pt"
            )
        except FOREIGN_FAULTS as error:
            raise BayplanError("the prompts cannot be tokenized", got=one_line(error)) from error
        named = {str(name): value for name, value in encoded.items()}
        if "input_ids" not in named:
            got = ", ".join(named) or "nothing"
            raise BayplanError("the prompts cannot be tokenized", got=got, needed="input_ids")
        mask = named.get("attention_mask", torch.ones_like(named["input_ids"]))
        for text, num_tokens in zip(texts, mask.sum(dim=1).tolist(), strict=True):
            if num_tokens == 0:
                raise UsageError("a prompt has no tokens", got=quote(text), needed="at least one")
        return named
