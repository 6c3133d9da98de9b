"""Checkpoints and data sets that many tests share, made once in the session's temporary folder."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A thread that waits for others leaves them the processor: it would spin, beside many other tests.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
sys.path.insert(0, os.path.dirname(__file__))

import pytest

import tiny_llama


class Inputs:
    """Models and data sets by name, made on first use."""

    MODELS = {
        "plain": tiny_llama.PLAIN,
        "many_heads": tiny_llama.MANY_HEADS,
        "tied": tiny_llama.TIED,
        "wide": tiny_llama.WIDE,
        "odd": dict(tiny_llama.ODD, vocab_size=tiny_llama.ODD_VOCABULARY),
        "mistral": tiny_llama.MISTRAL,
        "qwen2": tiny_llama.QWEN2,
        "qwen3": tiny_llama.QWEN3,
        "granite": tiny_llama.GRANITE,
        "phi3": tiny_llama.PHI3,
        "smollm3": tiny_llama.SMOLLM3,
        "glm": tiny_llama.GLM,
        "glm4": tiny_llama.GLM4,
        "gemma": tiny_llama.GEMMA,
        "gemma2": tiny_llama.GEMMA2,
        "gemma3": tiny_llama.GEMMA3,
        "gemma4": tiny_llama.GEMMA4,
        "gemma4_small": tiny_llama.GEMMA4_SMALL,
        "gemma4_experts": tiny_llama.GEMMA4_EXPERTS,
        "qwen3_5": tiny_llama.QWEN35,
        "qwen3_next": tiny_llama.QWEN3_NEXT,
        "olmo2": tiny_llama.OLMO2,
        "olmo3": tiny_llama.OLMO3,
        "seed_oss": tiny_llama.SEED_OSS,
        "arcee": tiny_llama.ARCEE,
        "apertus": tiny_llama.APERTUS,
        "exaone4": tiny_llama.EXAONE4,
        "ernie4_5": tiny_llama.ERNIE45,
        "hunyuan": tiny_llama.HUNYUAN,
        "ministral3": tiny_llama.MINISTRAL3,
        "internlm3": tiny_llama.INTERNLM3,
        "cwm": tiny_llama.CWM,
        "helium": tiny_llama.HELIUM,
        "hyperclovax": tiny_llama.HYPERCLOVAX,
        "vaultgemma": tiny_llama.VAULTGEMMA,
        "minicpm3": tiny_llama.MINICPM3,
        "youtu": tiny_llama.YOUTU,
        "granite_swa": tiny_llama.GRANITE_SWA,
        "nanochat": tiny_llama.NANOCHAT,
        "gpt2": tiny_llama.GPT2,
        "gpt": tiny_llama.GPT,
        "bigcode": tiny_llama.GPT_BIGCODE,
        "gpt_neox": tiny_llama.GPT_NEOX,
        "opt": tiny_llama.OPT,
        "xglm": tiny_llama.XGLM,
        "opt_350m": tiny_llama.OPT_350M,
        "starcoder2": tiny_llama.STARCODER2,
        "cohere": tiny_llama.COHERE,
        "cohere2": tiny_llama.COHERE2,
        "phi": tiny_llama.PHI,
        "persimmon": tiny_llama.PERSIMMON,
        "stablelm": tiny_llama.STABLELM,
        "olmo": tiny_llama.OLMO,
        "nemotron": tiny_llama.NEMOTRON,
        "jais2": tiny_llama.JAIS2,
        "gptj": tiny_llama.GPTJ,
        "codegen": tiny_llama.CODEGEN,
        "gpt_neo": tiny_llama.GPT_NEO,
        "falcon": tiny_llama.FALCON,
        "falcon_40b": tiny_llama.FALCON_40B,
        "bloom": tiny_llama.BLOOM,
        "mpt": tiny_llama.MPT,
        "qwen3_moe": tiny_llama.QWEN3_MOE,
        "qwen2_moe": tiny_llama.QWEN2_MOE,
        "mixtral": tiny_llama.MIXTRAL,
        "glm4_moe": tiny_llama.GLM4_MOE,
        "deepseek_v2": tiny_llama.DEEPSEEK_V2,
        "deepseek_v3": tiny_llama.DEEPSEEK_V3,
        "glm4_moe_lite": tiny_llama.GLM_FLASH,
        "gpt_oss": tiny_llama.GPT_OSS,
        "lfm2": tiny_llama.LFM2,
        "lfm2_moe": tiny_llama.LFM2_MOE,
        "granitemoehybrid": tiny_llama.GRANITE_HYBRID,
        "bamba": tiny_llama.BAMBA,
        "falcon_h1": tiny_llama.FALCON_H1,
        "nemotron_h": tiny_llama.NEMOTRON_H,
        "olmoe": tiny_llama.OLMOE,
        "minimax_m2": tiny_llama.MINIMAX_M2,
        "granitemoe": tiny_llama.GRANITE_MOE,
        "granitemoeshared": tiny_llama.GRANITE_SHARED,
        "granitemoe_swa": tiny_llama.GRANITE_MOE_SWA,
        "ernie4_5_moe": tiny_llama.ERNIE45_MOE,
        "hunyuan_v1_moe": tiny_llama.HUNYUAN_MOE,
        "dots1": tiny_llama.DOTS1,
        "llama4_text": tiny_llama.LLAMA4,
        "exaone_moe": tiny_llama.EXAONE_MOE,
        "solar_open": tiny_llama.SOLAR_OPEN,
        "mellum": tiny_llama.MELLUM,
        "flex_olmo": tiny_llama.FLEX_OLMO,
        "afmoe": tiny_llama.AFMOE,
        "sparse_mixture": dict(tiny_llama.QWEN3_MOE, num_experts=60, router_aux_loss_coef=0.001),
        "llama2": dict(tiny_llama.PLAIN, llama2=330),
        "llama2-tied": dict(tiny_llama.TIED, llama2=330),
        "gpt2-grows": dict(tiny_llama.GPT2, llama2=330),
        "gpt2-untied-grows": dict(tiny_llama.GPT2, llama2=330, tie_word_embeddings=False),
        "bigcode-grows": dict(tiny_llama.GPT_BIGCODE, llama2=330),
        "gpt_neox-grows": dict(tiny_llama.GPT_NEOX, llama2=330),
        "gpt_neox-tied-grows": dict(tiny_llama.GPT_NEOX, llama2=330, tie_word_embeddings=True),
        "opt-grows": dict(tiny_llama.OPT_350M, llama2=330),
        "cohere-grows": dict(tiny_llama.COHERE, llama2=330),
        "gptj-grows": dict(tiny_llama.GPTJ, llama2=330),
        "gpt_neo-grows": dict(tiny_llama.GPT_NEO, llama2=330),
        "mpt-grows": dict(tiny_llama.MPT, llama2=330),
        "phi-grows": dict(tiny_llama.PHI, llama2=330),
        "bloom-grows": dict(tiny_llama.BLOOM, llama2=330),
        "llama2-wide": dict(tiny_llama.WIDE, llama2=32000),
    }

    def __init__(self, folder):
        self.folder = folder

    def model(self, name):
        folder = self.folder / f"model-{name}"
        if not folder.exists():
            tiny_llama.save_model(folder, **self.MODELS[name])
        return folder

    def data(self, kind, train=40, test=9):
        folder = self.folder / f"data-{kind}-{train}-{test}"
        if not folder.exists():
            tiny_llama.save_data(folder, kind, train, test)
        return folder


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    return Inputs(tmp_path_factory.mktemp("inputs"))
