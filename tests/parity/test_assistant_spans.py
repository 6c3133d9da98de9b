"""Oracle: transformers' own assistant masks (`return_assistant_tokens_mask`) of templates with {% generation %} blocks, for
templates that write the same text without them: TRL's pairs of published and training templates, and feature templates."""

import copy
import json
import pathlib
import re

import jinja2
import pytest
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from data_probe import probe

TRL = pathlib.Path(trl.__file__).parent / "chat_templates"
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]
CALL = [{"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


CHATS = {
    "one turn": [user("q1 é"), answer("b")],
    "turns": [user("q1"), answer("a <b>x</b>"), user("q2 a"), answer("\n b two\n"), user("q3"), answer("c xyz")],
    "system": [{"role": "system", "content": "Be kind."}, user("q1"), answer("a"), user("q2"), answer("b")],
    "reasoning": [user("q1"), answer("<think>\nhm\n</think>\n\na"), user("q2"), answer("<think>\nso\n</think>\n\nb")],
    "reasoning apart": [user("q1"), answer("a", reasoning_content="hm"), user("q2"), answer("b", reasoning_content="so")],
    "calls": [user("q1"), answer("let me see", tool_calls=CALL), {"role": "tool", "name": "add", "content": "2", "tool_call_id": "call00001"},
              answer("a"), user("q2"), answer("b")],
    "calls alone": [user("q1"), answer("", tool_calls=CALL), {"role": "tool", "name": "add", "content": "2", "tool_call_id": "call00001"},
                    answer("it is 2")],
    "calls in a row": [user("q1"), answer("", tool_calls=CALL), {"role": "tool", "name": "add", "content": "2", "tool_call_id": "call00001"},
                       answer("", tool_calls=CALL), {"role": "tool", "name": "add", "content": "3", "tool_call_id": "call00001"},
                       answer("it is 3"), user("q2"), answer("b")],
    "parts": [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in (
        ("user", "q1"), ("assistant", "a b"), ("user", "q2"), ("assistant", "c"))],
    "reasoning and calls": [user("q1"), answer("<think>\nhm\n</think>\n\nlook", tool_calls=CALL), {
        "role": "tool", "name": "add", "content": "2", "tool_call_id": "call00001"}, answer("<think>\nyes\n</think>\n\na"),
        user("q2"), answer("<think>\nno\n</think>\n\nb")],
}


def byte_tokenizer(bos="<s>", eos="</s>", pad="<pad>"):
    """A token for every byte, so that masks show every character, and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary, bos_token=bos, eos_token=eos, pad_token=pad)


class Masks:
    """What is trained of conversations: by Strata with one template, by transformers with another."""

    def __init__(self, tokenizer, folder):
        self.tokenizer, self.folder = tokenizer, folder

    def ours(self, template, rows):
        self.tokenizer.chat_template = template
        self.tokenizer.save_pretrained(self.folder / "tokenizer")
        requests = []
        for i, row in enumerate(rows):
            path = self.folder / f"{i}.jsonl"
            path.write_text(json.dumps(row) + "\n")
            requests.append({"op": "prepare", "tokenizer": str(self.folder / "tokenizer"), "data": str(path), "batch_size": 1,
                             "max_length": 0, "assistant_only_loss": True})
        return [(answer["rows"][0]["ids"], [int(label != -100) for label in answer["rows"][0]["labels"]])
                for answer in probe(self.folder, requests)]

    def theirs(self, template, row):
        variables = row.get("chat_template_kwargs", {})
        encoded = self.tokenizer.apply_chat_template(
            copy.deepcopy(row["messages"]), chat_template=template, tools=row.get("tools"), return_dict=True,
            return_assistant_tokens_mask=True, **variables)
        return encoded["input_ids"], encoded["assistant_masks"]

    def spans(self, ids, mask):
        text, parts, last = self.tokenizer.decode, [], 0
        for i, trained in enumerate(mask):
            if trained:
                parts = parts + [[]] if not last else parts
                parts[-1].append(ids[i])
            last = trained
        return [text(part) for part in parts]


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    return Masks(byte_tokenizer(), tmp_path_factory.mktemp("spans"))


# --- templates in the way of published ones ---------------------------------------------------------------------------

# BEGIN and END are {% generation %} blocks, or nothing. Reasoning is shown behind the last question only; the prompt of an
# answer holds an empty block where thinking is turned off (Qwen3), or opens one (its later thinking models).
REASONS = """{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}{{ 'tools: ' ~ (tools | tojson) ~ '\n' }}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
  {%- set text = m.content or '' -%}{%- set thought = m.reasoning_content or '' -%}
  {%- if '</think>' in text -%}
    {%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
    {%- set text = text.split('</think>')[-1].lstrip('\n') -%}
  {%- endif -%}
  {%- set end = text ~ ('\n<call>' ~ (m.tool_calls | tojson) ~ '</call>' if m.tool_calls else '') ~ '<|im_end|>\n' -%}
  {{- '<|im_start|>assistant\n' -}}
  {%- if loop.index0 < ns.last -%}BEGIN{{ end }}END
  {%- elif PROMPT == '<think>\n' -%}{{ PROMPT }}BEGIN{{ thought ~ '\n</think>\n\n' ~ end }}END
  {%- elif PROMPT and not thought -%}{{ PROMPT }}BEGIN{{ end }}END
  {%- else -%}BEGIN{{ '<think>\n' ~ thought ~ '\n</think>\n\n' ~ end }}END
  {%- endif -%}
{%- elif m.role == 'tool' -%}{{ '<|im_start|>user\n<result>' ~ m.content ~ '</result><|im_end|>\n' }}
{%- else -%}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' ~ PROMPT }}{%- endif -%}"""
QWEN3 = REASONS.replace("PROMPT", "('<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '')")
OPENS = REASONS.replace("PROMPT", "('<think>\\n' if true else '')")
# The last question has the system message and the tools before it (Mistral); every answer is stripped; another end for the last.
QUESTIONS = """<s>{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
  {%- if loop.index0 == ns.last -%}{{ '[TOOLS]' ~ (tools | tojson if tools else '') ~ '[/TOOLS]' }}{%- endif -%}
  {{- '[INST] ' ~ ('kindly ' if loop.index0 == ns.last else '') ~ m.content ~ '[/INST]' -}}
{%- elif m.role == 'assistant' -%}BEGIN{{ ' ' ~ m.content.strip() ~ ('</s>' if loop.last else '<|end|>') }}END
{%- endif -%}
{%- endfor -%}"""
# The last answer ends with the end token, earlier ones with a mark (gpt-oss).
TWO_ENDS = """{%- for m in messages -%}{{ '<|start|>' ~ m.role ~ '<|message|>' }}
{%- if m.role == 'assistant' -%}BEGIN{{ m.content ~ ('</s>' if loop.last else '<|end|>') }}END
{%- else -%}{{ m.content ~ '<|end|>' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant<|message|>' }}{%- endif -%}"""
# Every answer ends with a mark, the conversation with the end token as well (Phi-3).
ONE_END = TWO_ENDS.replace("('</s>' if loop.last else '<|end|>')", "'<|end|>\\n' ~ ('</s>' if loop.last else '')")
# The tools stand before the last question, and an answer with calls says nothing beside them (Mistral v0.3).
CALLS_ALONE = """<s>{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
  {{- ('[TOOLS]' ~ (tools | tojson) ~ '[/TOOLS]' if tools and loop.index0 == ns.last else '') ~ '[INST] ' ~ m.content ~ '[/INST]' -}}
{%- elif m.tool_calls -%}BEGIN{{ '[CALLS] ' ~ (m.tool_calls | tojson) ~ '</s>' }}END
{%- elif m.role == 'assistant' -%}BEGIN{{ ' ' ~ m.content ~ '</s>' }}END
{%- else -%}{{ '[RESULT]' ~ m.content ~ '[/RESULT]' }}{%- endif -%}
{%- endfor -%}"""
# What a tool found ends otherwise where more follows (Hermes).
RESULTS = """{%- for m in messages -%}
{%- if m.role == 'tool' -%}{{ '<|im_start|>tool\\n<result>\\n' ~ m.content ~ '\\n</result>' ~ ('' if loop.last else '\\n') ~ '<|im_end|>' }}
{%- elif m.role == 'assistant' -%}{{ '<|im_start|>assistant\\n' -}}
  BEGIN{{ ('<call>' ~ (m.tool_calls | tojson) ~ '</call>' if m.tool_calls else m.content) ~ '<|im_end|>\\n' }}END
{%- else -%}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
FEATURES = {"qwen3": QWEN3, "opens reasoning": OPENS, "rewrites the last question": QUESTIONS, "two ends": TWO_ENDS,
            "an end more": ONE_END, "calls alone": CALLS_ALONE, "results of tools": RESULTS}
# Conversations that the others do not know.
ONLY = {"rewrites the last question": ("one turn", "turns"), "two ends": ("one turn", "turns", "system"),
        "an end more": ("one turn", "turns", "system"), "calls alone": ("one turn", "turns", "calls", "calls alone", "calls in a row")}
VARIABLES = {"as it is": None, "thinking": {"enable_thinking": True}, "not thinking": {"enable_thinking": False}}


def blocks(template, exist):
    return template.replace("BEGIN", "{% generation %}" if exist else "").replace("END", "{% endgeneration %}" if exist else "")


@pytest.mark.parametrize("variables", VARIABLES)
@pytest.mark.parametrize("name", FEATURES)
def test_templates_that_change_earlier_turns(masks, name, variables):
    rows = {}
    for chat, messages in CHATS.items():
        if chat == "parts" or chat not in ONLY.get(name, CHATS):
            continue  # which the template does not know
        if variables == "not thinking" and "reasoning" in chat:
            continue  # thoughts that the prompt has ruled out: below
        rows[chat] = {"messages": messages, **({"tools": TOOLS} if "call" in chat else {}),
                      **({"chat_template_kwargs": VARIABLES[variables]} if VARIABLES[variables] else {})}
    plain, marked = blocks(FEATURES[name], False), blocks(FEATURES[name], True)
    for (chat, row), (ids, mask) in zip(rows.items(), masks.ours(plain, list(rows.values())), strict=True):
        expected_ids, expected = masks.theirs(marked, row)
        assert ids == expected_ids, chat
        assert masks.spans(ids, mask) == masks.spans(ids, expected), chat
        assert any(mask)
    again = masks.ours(marked, list(rows.values()))
    assert again == masks.ours(plain, list(rows.values())), "with and without blocks"


def test_thoughts_that_the_prompt_rules_out(masks):
    """Turned off, yet there: what the prompt does not write is trained, and every answer is found."""
    row = {"messages": CHATS["reasoning"], "chat_template_kwargs": {"enable_thinking": False}}
    (ids, mask), = masks.ours(blocks(QWEN3, False), [row])
    assert masks.spans(ids, mask) == ["a<|im_end|>\n", "so\n</think>\n\nb<|im_end|>\n"]


def test_weights_where_earlier_turns_change(masks):
    messages = copy.deepcopy(CHATS["reasoning"])
    messages[1]["weight"] = 0
    for template in (blocks(QWEN3, False), blocks(QWEN3, True)):
        (ids, mask), = masks.ours(template, [{"messages": messages}])
        assert masks.spans(ids, mask) == ["<think>\nso\n</think>\n\nb<|im_end|>\n"]


# --- TRL's pairs ------------------------------------------------------------------------------------------------------

PAIRS = sorted(path.name.removesuffix("_training.jinja") for path in TRL.glob("*_training.jinja"))


CALLS = ["calls", "calls alone", "calls in a row", "reasoning and calls"]
# Conversations that a published template does not take; every other one is compared.
REFUSES = {"cohere": [*CALLS, "parts"], "cohere2": CALLS, "deepseek_r1_distill": ["parts"], "deepseekv3": [*CALLS, "parts"],
           "gemma": [*CALLS, "system"], "gemma3": CALLS, "gptoss": ["parts"], "idefics3": ["calls alone", "calls in a row"],
           "llava_next": [chat for chat in CHATS if chat != "parts"], "phi3": ["parts"], "phi3_5": ["parts"], "qwen2_5": ["parts"],
           "smolvlm": ["calls alone", "calls in a row"]}
# This one writes what an answer says beside a call behind the tool's result: no answer is in one piece.
IN_PIECES = {"diffusion_gemma": CALLS}
# Marks of roles and reasoning that some training templates train though the prompt of an answer writes them.
PROMPTED = re.compile(r"(<[^<>]+>|assistant|\n)*")
# Where the training template shows reasoning of earlier answers that the published one hides.
REASONED = re.compile(r"(<[^<>]+>|assistant|\n|hm|so|yes|no)*")
# The training template ends every answer with the mark of the next role, which the published one writes as that role's own.
ENDS = {"glm4moe": re.compile(r"<\|(user|observation)\|>$")}

# The published template writes a blank behind every answer.
BLANKS = {"llava_next"}
# The first and last token of the families' own tokenizers, by the beginning of the template's name; padding where it is another.
OWN = {"cohere": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<PAD>"),
       "deepseek": ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
       "diffusion_gemma": ("<bos>", "<turn|>", "<pad>"), "gemma3": ("<bos>", "<end_of_turn>", "<pad>"), "gemma": ("<bos>", "<eos>", "<pad>"),
       "glm4moe": (None, "<|user|>", "<|endoftext|>"), "gptoss": ("<|startoftext|>", "<|return|>", "<|endoftext|>"),
       "idefics3": ("<|begin_of_text|>", "<end_of_utterance>", "<|end_of_text|>"), "lfm2": ("<|startoftext|>", "<|im_end|>", "<|pad|>"),
       "llama3": ("<|begin_of_text|>", "<|eot_id|>"), "llava_next": ("<s>", "</s>", "<unk>"), "muse_glimmer": ("<bos>", "<eos>"),
       "nemotron": ("<s>", "<|im_end|>"), "phi3_5": ("<s>", "<|endoftext|>"), "phi3": ("<s>", "<|end|>", "<|endoftext|>"),
       "qwen": (None, "<|im_end|>", "<|endoftext|>"), "smolvlm": ("<|im_start|>", "<end_of_utterance>", "<|im_end|>")}


def own_tokens(name):
    bos, eos, *pad = next(tokens for family, tokens in OWN.items() if name.startswith(family))
    return bos, eos, pad[0] if pad else eos


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_trl(masks, name):
    compare_pair(masks, name)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_trl_with_their_own_tokens(tmp_path, name):
    """What ends an answer is one token, which the template writes by itself or as eos_token."""
    compare_pair(Masks(byte_tokenizer(*own_tokens(name)), tmp_path), name)


def compare_pair(masks, name):
    published, training = (TRL / f"{name}.jinja").read_text(), (TRL / f"{name}_training.jinja").read_text()
    rows = {chat: {"messages": messages, **({"tools": TOOLS} if "call" in chat else {})} for chat, messages in CHATS.items()}
    rendered = {}
    for chat, row in rows.items():
        try:
            rendered[chat] = masks.tokenizer.apply_chat_template(
                copy.deepcopy(row["messages"]), chat_template=published, tools=row.get("tools"), return_dict=True)["input_ids"]
        except (jinja2.TemplateError, TypeError):
            with pytest.raises(AssertionError, match="0.jsonl:1: "):
                masks.ours(published, [row])
    assert sorted(set(CHATS) - set(rendered)) == sorted(REFUSES.get(name, []))
    compared = [chat for chat in rendered if chat not in IN_PIECES.get(name, [])]
    assert len(compared) >= (1 if name == "llava_next" else 5)
    for chat, (found, mask) in zip(compared, masks.ours(published, [rows[chat] for chat in compared]), strict=True):
        assert found == rendered[chat], chat
        expected_ids, expected = masks.theirs(training, rows[chat])
        ours, theirs = masks.spans(found, mask), masks.spans(expected_ids, expected)
        lead = PROMPTED if expected_ids == found else REASONED
        if name in ENDS:
            theirs = [ENDS[name].sub("", text) for text in theirs]
        assert len(ours) == len(theirs) > 0, (chat, ours, theirs)
        for mine, other in zip(ours, theirs):
            mine = mine.removesuffix(" ") if name in BLANKS else mine
            assert other.endswith(mine) and lead.fullmatch(other.removesuffix(mine)), (chat, ours, theirs)


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "gptoss", "gemma3"])
def test_training_templates_of_trl(masks, name):
    """To the token, where somebody passes the file that TRL puts in the published one's place."""
    training = (TRL / f"{name}_training.jinja").read_text()
    rows, expected = [], []
    for chat, messages in CHATS.items():
        row = {"messages": messages, **({"tools": TOOLS} if "call" in chat else {})}
        try:
            expected.append(masks.theirs(training, row))
            rows.append(row)
        except (jinja2.TemplateError, TypeError):
            continue  # which the template does not take
    assert rows and masks.ours(training, rows) == expected


def test_an_answer_in_pieces_is_refused(masks):
    published = (TRL / "diffusion_gemma.jinja").read_text()
    with pytest.raises(AssertionError, match=r"0.jsonl:1: found a chat template that shows answers of earlier turns otherwise"):
        masks.ours(published, [{"messages": CHATS["calls"], "tools": TOOLS}])
