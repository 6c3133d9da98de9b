"""Small random checkpoints of BART, mBART, M2M-100, Pegasus and Marian, for tests of seq2seq. Everything is a pure function of its arguments; nothing is downloaded."""

from tiny_llama import WORDS
from tiny_t5 import LABELS

PLAIN = dict(d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=40,
             decoder_ffn_dim=36, max_position_embeddings=40, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)


def save_words(folder):
    """A tokenizer of whole words that puts each text between <s> and </s>; returns its size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {name: i for i, name in enumerate(["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys([*WORDS, *LABELS, *LABELS.values(), "judge:"])])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
                            model_input_names=["input_ids", "attention_mask"]).save_pretrained(folder)
    return len(vocabulary)


def save_bart(folder, vocab_size=None, tokenizer=True, scale=0.2, family="Bart", **settings):
    """Checkpoint folder; all weights random and large enough that losses move within few steps."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    size = save_words(folder) if tokenizer else 0
    torch.manual_seed(0)
    config, model = (getattr(transformers, family + end) for end in ("Config", "MTModel" if family == "Marian" else "ForConditionalGeneration"))
    model = model(config(vocab_size=vocab_size or size, **{**PLAIN, **settings}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.7, 1.3)
            elif parameter.requires_grad:
                parameter.normal_(0, scale)
        if family == "Marian":
            model.final_logits_bias.normal_()
    model.generation_config.update(forced_bos_token_id=settings.get("forced_bos_token_id"))
    model.save_pretrained(folder)
    return folder
