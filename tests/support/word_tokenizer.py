"""A tokenizer of 64 words for the tiny checkpoints: every prompt made of them has as many tokens as words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def add_tokenizer(folder: Path) -> Path:
    """Save a tokenizer whose words are `w4` to `w63`, each its own id, and return `folder`."""
    vocabulary = {word: number for number, word in enumerate(_SPECIAL)}
    vocabulary |= {f"w{number}": number for number in range(len(_SPECIAL), 64)}
    model = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    return folder
