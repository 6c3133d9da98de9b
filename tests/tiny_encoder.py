"""Encoders that are made in a moment: BERT, RoBERTa and others of their kind, ModernBERT, from files of several classes, with a tokenizer
of whole words."""

from tiny_llama import WORDS

BASE = dict(vocab_size=97, hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
ROBERTA_BASE = dict(BASE, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1)
BASES = {"bert": BASE, "roberta": ROBERTA_BASE, "xlm-roberta": ROBERTA_BASE, "camembert": ROBERTA_BASE,
         # The second layer is the first one once more.
         "albert": dict(BASE, embedding_size=20, classifier_dropout_prob=0.0), "electra": dict(BASE, embedding_size=20), "mpnet": dict(BASE, max_position_embeddings=66, pad_token_id=1),
         # A vector for each of three distances to a side, then one for several.
         "deberta-v2": dict(BASE, relative_attention=True, position_buckets=6, norm_rel_ebd="layer_norm", share_att_key=True,
                            pos_att_type="p2c|c2p", position_biased_input=False),
         "deberta": dict(BASE, relative_attention=True, pos_att_type="c2p|p2c", position_biased_input=False),
         "distilbert": dict(vocab_size=97, dim=32, hidden_dim=52, n_layers=2, n_heads=4, max_position_embeddings=64,
                            dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0),
         "eurobert": dict(vocab_size=97, hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4,
                          max_position_embeddings=64, pad_token_id=0),
         # A window of four tokens on each side, in the second and the third layer.
         "modernbert": dict(vocab_size=97, hidden_size=32, intermediate_size=52, num_hidden_layers=3, num_attention_heads=4,
                            max_position_embeddings=64, local_attention=8, pad_token_id=0)}
# A family and the class of its files: heads of all of them begin anew, BERT's pooler only where the files have none.
MODELS = {"bert": ("bert", "ForPreTraining"), "bert_mlm": ("bert", "ForMaskedLM"), "roberta": ("roberta", "ForMaskedLM"),
          "xlm_roberta": ("xlm-roberta", "ForMaskedLM"), "distilbert": ("distilbert", "ForMaskedLM"),
          "modernbert": ("modernbert", "ForMaskedLM"), "body": ("bert", "Model"), "modernbert_body": ("modernbert", "Model"),
          "bert_segments": ("bert", "ForPreTraining"), "electra": ("electra", "ForPreTraining"),
          "camembert": ("camembert", "ForMaskedLM"), "mpnet": ("mpnet", "ForMaskedLM"), "deberta": ("deberta-v2", "ForMaskedLM"),
          "albert": ("albert", "ForPreTraining"), "eurobert": ("eurobert", "ForMaskedLM"),
          "deberta_1": ("deberta", "ForMaskedLM")}
DROPS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout",
         "seq_classif_dropout", "embedding_dropout", "mlp_dropout", "cls_dropout", "pooler_dropout", "classifier_dropout_prob")
PREFIXES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "distilbert": "DistilBert",
            "modernbert": "ModernBert", "camembert": "Camembert", "electra": "Electra", "mpnet": "MPNet",
            "deberta-v2": "DebertaV2", "albert": "Albert", "eurobert": "EuroBert",
            "deberta": "Deberta"}
OF_FAIRSEQ = ("roberta", "xlm-roberta", "camembert", "mpnet")  # their tokens, and positions from the padding's on


def save_words(folder, family, gives_segments=False):
    """A tokenizer of whole words that puts each text between two tokens of its own; returns its size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    is_fairseq = family in OF_FAIRSEQ
    names = ["<s>", "<pad>", "</s>", "<unk>"] if is_fairseq else ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    first, last, pad, unknown = (0, 2, 1, 3) if is_fairseq else (2, 3, 0, 1)
    vocabulary = {name: i for i, name in enumerate([*names, *dict.fromkeys(WORDS)])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=names[unknown]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single=f"{names[first]} $A {names[last]}", pair=f"{names[first]} $A {names[last]} $B:1 {names[last]}:1",
        special_tokens=[(names[first], first), (names[last], last)]) if not is_fairseq else processors.RobertaProcessing(
            (names[last], last), (names[first], first))
    inputs = ["input_ids", *(["token_type_ids"] if gives_segments else []), "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token=names[pad], unk_token=names[unknown], cls_token=names[first],
                            sep_token=names[last], model_input_names=inputs).save_pretrained(folder)
    return len(vocabulary)


def own_drops(family):
    """Rates that BASES does not name."""
    if family == "modernbert":
        return "embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout"
    if family == "eurobert":
        return ("attention_dropout",)
    if family in ("deberta", "deberta-v2"):
        return "cls_dropout", "pooler_dropout"
    return () if family == "distilbert" else ("classifier_dropout",)


def save_encoder(folder, name, drops=0.0, vocab_size=None, **settings):
    """A checkpoint folder of one of MODELS with a tokenizer; all its dropouts are `drops`."""
    import torch
    import transformers

    family, end = MODELS[name]
    size = save_words(folder, family, name.endswith("segments"))
    settings = {**BASES[family], "vocab_size": vocab_size or size, **settings}
    settings |= {key: drops for key in DROPS if key in settings or key in own_drops(family)}
    config = transformers.AutoConfig.for_model(family, **settings)
    torch.manual_seed(0)
    model = getattr(transformers, PREFIXES[family] + end)(config)
    with torch.no_grad():
        for weight, parameter in model.named_parameters():
            if "norm" in weight.lower() and weight.endswith("weight"):
                parameter.uniform_(0.7, 1.3)
            else:
                parameter.normal_(0, 0.08)
    model.save_pretrained(folder)
    return folder
