"""Makes fuzz/corpus: small whole files of the reference and hostile ones. Run it in the parity
environment after a format grows; the result is part of the repository."""

import collections
import io
import json
import os
import pathlib
import pickle
import struct
import tempfile
import zipfile

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import torch
import torch.distributed.checkpoint as dcp
import xxhash

CORPUS = pathlib.Path(__file__).parent / "corpus"


def put(kind, name, data):
    (CORPUS / kind).mkdir(parents=True, exist_ok=True)
    (CORPUS / kind / name).write_bytes(data)


def safetensors(header, data=b"\0" * 8, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def make_safetensors():
    one = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    put("safetensors", "whole", safetensors({"__metadata__": {"format": "pt"}, **one}))
    put("safetensors", "empty_tensor", safetensors({"a": {"dtype": "F32", "shape": [0, 3],
                                                          "data_offsets": [0, 0]}}, b""))
    hostile = {
        "huge_length": safetensors(one, length=2**63), "long_length": safetensors(one, length=200),
        "overflowing_shape": safetensors({"a": dict(one["a"], shape=[2**62, 2**62])}),
        "negative_shape": safetensors({"a": dict(one["a"], shape=[-2])}),
        "backward_offsets": safetensors({"a": dict(one["a"], data_offsets=[8, 0])}),
        "far_offsets": safetensors({"a": dict(one["a"], data_offsets=[2**63, 2**63 + 8])}),
        "overlap": safetensors({"a": one["a"], "b": one["a"]}),
        "twice": safetensors(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                             b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        "deep": safetensors(b'{"a":' * 5000 + b"0" + b"}" * 5000),
        "no_object": safetensors(b"[]"), "bad_utf8": safetensors(b'{"\xff\xfe":{}}'),
        "metadata_number": safetensors({"__metadata__": {"a": 1}, **one}),
    }
    for name, data in hostile.items():
        put("safetensors", name, data)


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text


def gguf_pair(key, kind, value):
    return gguf_text(key) + struct.pack("<I", kind) + value


def gguf_tensor(name, shape, kind=0, at=0):
    return gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)


def gguf(keys, tensors, data=b"\0" * 64, counts=None):
    count_of_tensors, count_of_keys = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", 3, count_of_tensors, count_of_keys) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


def make_gguf():
    def array(kind, count, content=b""):
        return struct.pack("<IQ", kind, count) + content

    keys = [gguf_pair(b"general.architecture", 8, gguf_text(b"llama")), gguf_pair(b"a", 4, struct.pack("<I", 7)),
            gguf_pair(b"b", 7, b"\1"), gguf_pair(b"c", 9, array(8, 2, gguf_text(b"x") + gguf_text(b""))),
            gguf_pair(b"d", 9, array(6, 2, struct.pack("<2f", 1, 2))), gguf_pair(b"e", 12, struct.pack("<d", 0.5))]
    one = gguf_tensor(b"m", [3, 2])
    put("gguf", "whole", gguf(keys, [one, gguf_tensor(b"q", [32], kind=8, at=32)], b"\0" * 96))
    put("gguf", "nothing", gguf([], []))
    for name, data in {
        "long_text": gguf([gguf_pair(b"k", 8, struct.pack("<Q", 2**40))], []), "endless_text": gguf([struct.pack("<Q", 2**64 - 1)], []),
        "long_array": gguf([gguf_pair(b"k", 9, array(8, 2**40))], []), "endless_array": gguf([gguf_pair(b"k", 9, array(0, 2**64 - 1))], []),
        "array_of_arrays": gguf([gguf_pair(b"k", 9, array(9, 1, array(0, 1, b"x")))], []),
        "many_tensors": gguf([], [one], counts=(2**60, 0)), "many_keys": gguf(keys[:1], [], counts=(0, 2**61)),
        "alignment": gguf([gguf_pair(b"general.alignment", 4, struct.pack("<I", 0))], [one]),
        "wide_alignment": gguf([gguf_pair(b"general.alignment", 4, struct.pack("<I", 2**31))], [one]),
        "overflowing_shape": gguf([], [gguf_tensor(b"m", [2**62, 2**62, 2, 2])]), "far_tensor": gguf([], [gguf_tensor(b"m", [3], at=2**64 - 32)]),
        "many_dimensions": gguf([], [gguf_tensor(b"m", [1] * 9)]), "no_type": gguf([], [gguf_tensor(b"m", [32], kind=2**31)]),
        "half_block": gguf([], [gguf_tensor(b"m", [31], kind=8)]), "twice": gguf([], [one, one]),
        "old": b"lmgg" + struct.pack("<I", 1) + b"\0" * 40, "other_version": b"GGUF" + struct.pack(">I", 3) + b"\0" * 40,
    }.items():
        put("gguf", name, data)


def manifest(**changes):
    piece = {"file": "rank-00000.safetensors", "key": "parameter/w", "begin": 0, "end": 6,
             "xxh3": "0" * 16}
    values = {"format": "strata-checkpoint", "version": 2, "world_size": 1, "step": 3,
              "num_updates": 3, "files": {"progress.json": {"bytes": 2, "xxh3": "1" * 16}},
              "tensors": {"parameter/w": {"shape": [2, 3], "dtype": "F32", "pieces": [piece]}}}
    values.update(changes)
    text = json.dumps(values, indent=1)[:-2] + ",\n "
    return (text + f'"checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n').encode()


def make_manifest():
    def tensor(shape, *ranges, file="f", **more):
        return {"a/b": {"shape": shape, "dtype": "F32", "pieces": [
            {"file": file, "key": "k", "begin": b, "end": e, "xxh3": "", **more} for b, e in ranges]}}

    def blocks(size, digits):
        return manifest(tensors=tensor([6], (0, 6), blocks={"bytes": size, "xxh3": digits}))

    put("manifest", "whole", manifest())
    for name, data in {
        "gap": manifest(tensors=tensor([6], (0, 2), (3, 6))),
        "overlap": manifest(tensors=tensor([6], (0, 4), (3, 6))),
        "huge": manifest(tensors=tensor([2**62, 2**62], (0, 6))),
        "negative": manifest(tensors=tensor([-6], (0, 6))),
        "far": manifest(tensors=tensor([6], (-2**63, 2**63 - 1))),
        "outside": manifest(tensors=tensor([6], (0, 6), file="../../etc/passwd")),
        "wrong_types": manifest(tensors=[], files=7, step="x"),
        "blocks": blocks(16, "01" * 16), "blocks_of_nothing": blocks(0, "01" * 16),
        "blocks_negative": blocks(-1, ""), "blocks_odd": blocks(16, "012"), "blocks_number": blocks("x", 7),
        "version": manifest(version=99), "null": b"null", "number": b"1e999",
    }.items():
        put("manifest", name, data)


class Call:
    def __init__(self, function, *arguments):
        self.value = (function, arguments)

    def __reduce__(self):
        return self.value


def make_pickle():
    tree = {"a": [1, 2.5, None, True, 2**40, -1], "b": ("x", {"y": collections.OrderedDict(c=1)})}
    for protocol in range(2, 6):
        put("pickle", f"tree{protocol}", pickle.dumps(tree, protocol))
    put("pickle", "system", pickle.dumps(Call(os.system, "true")))
    put("pickle", "eval", pickle.dumps(Call(eval, "1"), 2))
    hostile = {
        "itself": b"\x80\x02]q\x00h\x00a.", "billion_laughs": b"\x80\x02]" + b"q\x00(h\x00h\x00l" * 40 + b".",
        "no_stop": b"\x80\x02N", "empty_stack": b"\x80\x02.", "mark": b"\x80\x02(t(u.",
        "long_text": b"\x80\x02X\xff\xff\xff\xff.", "long_text8": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        "bad_memo": b"\x80\x02j\xff\xff\xff\xff.", "big_number": b"\x80\x02\x8a\xff" + b"\1" * 255 + b".",
        "build_on_none": b"\x80\x02N}b.", "reduce_on_none": b"\x80\x02N)R.", "odd_items": b"\x80\x02}(Nu.",
        "stack_global_of_numbers": b"\x80\x04K\x01K\x02\x93.", "protocol": b"\x80\xff.",
        "inst": b"(ios\nsystem\n.", "obj": b"(cos\nsystem\no.", "ext": b"\x82\x01.",
    }
    for name, data in hostile.items():
        put("pickle", name, data)


def saved(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def zipped(records, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr("archive/" + name, data)
    return stream.getvalue()


def make_torch_file():
    base = torch.arange(6.0)
    put("torch_file", "whole", saved({"w": base.reshape(2, 3), "i": torch.tensor([1, 2]), "n": 1}))
    put("torch_file", "views", saved({"t": base.reshape(2, 3).t(), "s": base[1:4], "e": base[:1].expand(9)}))
    put("torch_file", "parameter", saved(torch.nn.Linear(2, 1).state_dict()))
    put("torch_file", "bf16", saved(torch.ones(2, dtype=torch.bfloat16)))
    put("torch_file", "float8", saved(torch.ones(2).to(torch.float8_e4m3fn)))
    put("torch_file", "legacy", saved(base, _use_new_zipfile_serialization=False))
    put("torch_file", "compressed", zipped({"data.pkl": b"\x80\x02N."}, zipfile.ZIP_DEFLATED))
    put("torch_file", "system", zipped({"data.pkl": pickle.dumps(Call(os.system, "true"), 2)}))
    put("torch_file", "no_pickle", zipped({"data/0": b"1234"}))
    put("torch_file", "big_endian", zipped({"data.pkl": b"\x80\x02N.", "byteorder": b"big"}))
    whole = (CORPUS / "torch_file" / "whole").read_bytes()
    put("torch_file", "size_changed", whole.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\x7fK\x03\x86"))
    put("torch_file", "offset_changed", whole.replace(b"QK\x00", b"QK\xff"))
    end = whole.rfind(b"PK\5\6")
    put("torch_file", "directory_far", whole[:end + 16] + b"\xf0\xff\xff\xff" + whole[end + 20:])
    put("torch_file", "directory_itself", whole[:end + 16] + struct.pack("<I", end) + whole[end + 20:])


def make_dcp():
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": {"w": torch.arange(6.0).reshape(2, 3)}, "lr": 0.5},
                 storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
        whole = pathlib.Path(folder, ".metadata").read_bytes()
    put("dcp", "whole", whole)
    put("dcp", "system", pickle.dumps(Call(os.system, "true")))
    put("dcp", "other_file", whole.replace(b"__0_0.distcp", b"../../passwd"))
    put("dcp", "none", pickle.dumps(None))
    put("dcp", "dict", pickle.dumps({"state_dict_metadata": {}}))


def tokenizer_files():
    added = [{"id": 3, "content": "<s>", "special": True, "normalized": False, "lstrip": False, "rstrip": False,
              "single_word": False},
             {"id": 4, "content": "</s>", "special": True, "normalized": True, "lstrip": True, "rstrip": True,
              "single_word": True}]
    ends = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                     {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}}
    mark = "\u2581"
    bpe = {"type": "BPE", "dropout": None, "unk_token": "a", "continuing_subword_prefix": "", "end_of_word_suffix": "",
           "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": {"a": 0, "b": 1, "ab": 2},
           "merges": [["a", "b"]]}
    space = {"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True}
    steps = {"type": "Sequence", "normalizers": [
        {"type": "NFC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": mark},
        {"type": "Replace", "pattern": {"Regex": " +"}, "content": mark}]}
    cuts = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}
    back = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": mark}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    unigram = {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
               "vocab": [["<unk>", 0.0], ["a", -1.5], [mark + "b", -2.0]]}
    pieces = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "##b": 2}}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True}
    words = {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1, "c": 2}}
    parts = {"bpe": (bpe, steps, cuts, back), "unigram": (unigram, bert, space, space),
             "wordpiece": (pieces, {"type": "Strip", "strip_left": True, "strip_right": True},
                           {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}),
             "wordlevel": (words, {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAA"},
                           {"type": "Whitespace"}, None)}
    for name, (model, normalizer, pre_tokenizer, decoder) in parts.items():
        yield name, json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                                "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": ends,
                                "decoder": decoder, "model": model}).encode()


def make_text():
    for name, data in tokenizer_files():
        put("tokenizer", name, data)
    put("template", "language", (
        "{%- macro f(a, b=2) -%}{{ a | tojson(indent=b) }}{%- endmacro -%}{% set ns = namespace(x=1) %}"
        "{% for m in messages if m.role != 'x' %}{% if loop.first and m['content'] is string %}{{ '<|' ~ m.role + '|>' }}"
        "{% generation %}{{ m.content[1:-1:2].strip().split('a') | map('upper') | join(', ') }}{% endgeneration %}"
        "{% elif m.tool_calls is defined %}{{ f({'a': [1, 2.5, none]}) }}{% else %}{% set ns.x = ns.x * 3 + loop.index0 // 2 %}"
        "{% break %}{% endif %}{% endfor %}{# note #}{{ raise_exception('no') if ns.x > 9 else strftime_now('%Y')[:0] }}").encode())
    put("template", "loops", b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    put("template", "cut_character", b"{% for a in range(9) %}{% endfor %}{%\xff")
    put("template", "recursion", b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    put("template", "loop_kept", b"{% set ns = namespace(f=0) %}{% for a in [1, 2] %}{% for b in [1] recursive %}{{ big }}"
        b"{% set ns.f = loop %}{% endfor %}{% endfor %}{{ ns.f([1, 2]) }}{{ ns.f.index }}")
    deepened = b"{%% set ns = namespace(x=1) %%}{%% for i in range(99999) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x%s }}"
    put("template", "deep_list", deepened % (b"[ns.x]", b" == [ns.x]"))
    put("template", "deep_dict", deepened % (b"{'a': ns.x}", b" | tojson"))
    put("template", "deep_namespace", deepened % (b"namespace(x=ns.x)", b""))
    put("template", "deep_method", deepened % (b"[ns.x].count", b".x"))
    put("template", "deep_map", deepened % (b"[ns.x]", b" | map(*['map'] * 9999)"))
    put("template", "brackets", b"{{ " + b"(" * 5000 + b"1" + b")" * 5000 + b" }}")
    row = b'{"a": "x \\u00e9\\n", "m": [{"role": "user", "n": -1.5e3}]}'
    put("rows", "array", b"\0[" + row + b', {"c": true}]')
    put("rows", "lines", b"\1" + row + b'\n[1]\n{"b": null}\n')
    put("rows", "lines_skipped", b"\x09" + row + b'\n[1]\n{"b": \n')
    turns = '[{"role": "user", "content": "q"}, {"from": "gpt", "value": "%s"}]'
    preferences = [
        '{"prompt": "q \u00e9", "chosen": "\u00e9", "rejected": "\u00e8"}',
        '{"chosen": "q \u00e9", "rejected": "q \u00e8"}', '{"chosen": "a", "rejected": "a"}',
        '{"chosen": %s, "rejected": %s, "system": "s"}' % (turns % "a", turns % "b"),
        '{"prompt": "q", "chosen": {"role": "assistant", "content": "a"}, "rejected": "b"}',
        '{"instruction": "q", "history": [["q", "a"]], "chosen": "a", "rejected": "b"}',
        '{"conversations": %s, "chosen": %s, "rejected": [], "tools": "[]"}' % ((turns % "a",) * 2),
        '{"messages": %s, "tools": [1], "chat_template_kwargs": {"x": null}}' % (turns % "a"),
        '{"chosen": [[]], "rejected": [{"role": 1}], "prompt": [null]}']
    put("rows", "preferences", b"\1" + "\n".join(preferences).encode())
    put("rows", "csv", b'\2a,b\n"x""\n",2\n,\n')
    put("rows", "text", b"\3one\r\n\ntwo\xc3\xa9\n\xff")


def tables():
    """Columns of every layout, two or three rows each."""
    list_type, text = pyarrow.list_(pyarrow.int32()), pyarrow.string()
    columns = {
        "texts": (["a", None, "\u00e9\u00df"], text), "large": (["a", "bc", None], pyarrow.large_string()),
        "views": (["a", "longer than twelve bytes", None], pyarrow.string_view()),
        "words": (["x", "y", "x"], pyarrow.dictionary(pyarrow.int8(), text)),
        "lists": ([[1, 2], None, []], list_type), "large_lists": ([[1], [2], None], pyarrow.large_list(pyarrow.int64())),
        "fixed": ([[1, 2], [3, 4], None], pyarrow.list_(pyarrow.int16(), 2)),
        "list_views": ([[1], [], [2, 3]], pyarrow.list_view(pyarrow.int32())),
        "chat": ([[{"role": "user", "content": "q"}], [], None],
                 pyarrow.list_(pyarrow.struct([("role", text), ("content", text)]))),
        "maps": ([[("k", 1)], [], None], pyarrow.map_(text, pyarrow.int32())),
        "flags": ([True, None, False], pyarrow.bool_()), "halves": ([0.5, 1.5, None], pyarrow.float64()),
        "days": ([1, 2, None], pyarrow.date32()), "times": ([1, 2, None], pyarrow.timestamp("ms", "UTC")),
        "bytes": ([b"\xff", b"", None], pyarrow.binary()), "nothing": ([None, None, None], pyarrow.null()),
    }
    for name, (values, kind) in columns.items():
        yield name, pyarrow.table({name: pyarrow.array(values, kind)})
    repeated = pyarrow.RunEndEncodedArray.from_arrays(pyarrow.array([2, 3], pyarrow.int32()), pyarrow.array(["a", "b"]))
    yield "repeated", pyarrow.table({"repeated": repeated})


def written(table, kind, **options):
    stream = io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(table, stream, **options)
    else:
        new = pyarrow.ipc.new_stream if kind == "stream" else pyarrow.ipc.new_file
        with new(stream, table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table)
    return stream.getvalue()


def make_arrow():
    for name, table in tables():
        put("arrow", f"{name}_stream", written(table, "stream"))
        if name not in ("repeated", "views", "list_views", "nothing"):
            put("arrow", f"{name}_parquet", written(table, "parquet", store_schema=False, compression="none"))
    chat = dict(tables())["chat"]
    put("arrow", "chat_file", written(chat, "file"))
    put("arrow", "chat_lz4", written(chat, "stream", compression="lz4"))
    put("arrow", "chat_zstd_file", written(chat, "file", compression="zstd"))
    put("arrow", "chat_parquet_zstd", written(chat, "parquet", compression="zstd"))
    put("arrow", "texts_parquet_plain", written(dict(tables())["texts"], "parquet", use_dictionary=False, compression="snappy"))
    stream = written(dict(tables())["texts"], "stream")
    put("arrow", "no_utf8", stream.replace("\u00e9\u00df".encode(), b"\xff\xc3\x28\xed"))
    put("arrow", "far_offsets", stream.replace(struct.pack("<4i", 0, 1, 1, 5), struct.pack("<4i", 0, 1, 1 << 30, -5)))
    put("arrow", "huge_message", b"\xff\xff\xff\xff\xf0\xff\xff\x7f" + stream[8:])


if __name__ == "__main__":
    make_gguf()
    for make in (make_safetensors, make_manifest, make_pickle, make_torch_file, make_dcp, make_text, make_arrow):
        make()
    print(sum(1 for path in CORPUS.rglob("*") if path.is_file()), "files")
