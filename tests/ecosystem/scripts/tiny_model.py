"""Writes a tiny GPT-2 with its tokenizer, and some texts, without any download."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS = ["rank", "node", "world", "store", "round", "lease", "key", "job", "loss", "step"]
ENDS = ["<pad>", "<eos>", "<unk>"]

tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(ENDS + WORDS)}, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", model_max_length=32
).save_pretrained("model")

torch.manual_seed(1)
config = GPT2Config(
    vocab_size=len(ENDS + WORDS),
    n_positions=32,
    n_embd=8,
    n_layer=1,
    n_head=2,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=0,
)
GPT2LMHeadModel(config).save_pretrained("model")

Path("texts").mkdir()
texts = [" ".join(WORDS[(at * step) % len(WORDS)] for step in range(1, 9)) for at in range(32)]
Path("texts/train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
