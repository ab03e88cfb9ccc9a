"""Conversations through a chat template: the text is the template's, targets are what the assistant says."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from loaders import TokenWindows
from loaders.errors import SourceError
from packdata.cli import main
from packdata.tokens.chat import open_template
from packdata.tokens.documents import Documents
from packdata.tokens.plan import TokenOptions, pack_tokens, plan_tokens
from packdata.tokens.tokenizer import JsonTokenizer
from tests.packdata.test_token_lists import labels_of
from tests.packdata.test_tokens import documents, pack, texts, write
from tests.refusals import At

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
# As of models that think: an opened answer begins by a thought, and earlier turns lose theirs.
THINKING = """\
{%- set last = namespace(user=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' }}
    {%- if message.role == 'assistant' and loop.index0 > last.user %}
        {{- '<think></think>' }}
    {%- endif %}
    {{- message.content.split('</think>')[-1] + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Größe?"},
    {"role": "assistant", "content": "Drei Äpfel."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "No."},
]


def write_chats(path: Path, *chats: Any, **more: Any) -> Path:
    rows = [
        {"messages": chat} | {name: v[i] for name, v in more.items()}
        for i, chat in enumerate(chats)
    ]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    return write(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def said(folder: Path) -> list[str]:
    """Return what of each document, packed as bytes, is a target."""
    return [bytes(x for x in labels if x != -100).decode() for labels in labels_of(folder)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_targets_are_the_turns_of_the_assistant_with_what_ends_them(
    tmp_path: Path, kind: str
) -> None:
    template = write(tmp_path / "chat.jinja", CHATML)
    source = write_chats(tmp_path / f"a.{kind}", CHAT, CHAT[:3], CHAT[:2])

    folder = pack(source, tmp_path / "p", chat_template=template, row_tokens=32)

    assert texts(folder)[1] == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGröße?<|im_end|>\n"
        "<|im_start|>assistant\nDrei Äpfel.<|im_end|>\n"
    )
    turn = "Drei Äpfel.<|im_end|>\n"
    assert said(folder) == [f"{turn}No.<|im_end|>\n", turn, ""]


def test_masked_prompts_are_no_targets_of_windows(tmp_path: Path) -> None:
    template = write(
        tmp_path / "chat.jinja", "{% for m in messages %}{{ m.role[0] + m.content }}{% endfor %}"
    )
    chat = [{"role": "user", "content": "12"}, {"role": "assistant", "content": "34"}]

    folder = pack(write_chats(tmp_path / "a.jsonl", chat), tmp_path / "p", chat_template=template)
    (window,) = TokenWindows(folder, 8, by="document")

    assert bytes(window.tokens.tolist()[:6]) == b"u12a34"
    assert window.targets.tolist() == [-100, -100, *b"a34", -100, -100, -100]


@pytest.fixture(scope="module")
def bpe() -> str:
    """A byte-level BPE with the special tokens of ChatML."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|im_start|>", "<|im_end|>", "<s>", "</s>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the assistant and the user, Drei Äpfel. " * 9], trainer)
    return str(tokenizer.to_str())


def test_special_tokens_of_the_template_are_ids_and_targets_follow_their_characters(
    tmp_path: Path, bpe: str
) -> None:
    tokenizer = write(tmp_path / "tokenizer.json", bpe)
    template = write(tmp_path / "chat.jinja", CHATML)
    source = write_chats(tmp_path / "a.jsonl", CHAT)

    folder = pack(source, tmp_path / "p", chat_template=template, tokenizer=tokenizer)

    known = tokenizers.Tokenizer.from_str(bpe)
    ((ids,), (labels,)) = documents(folder), labels_of(folder)
    assert sum(known.id_to_token(token) == "<|im_start|>" for token in ids) == len(CHAT)
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
    spoken = known.decode([x for x in labels if x != -100], skip_special_tokens=False)
    assert spoken == "Drei Äpfel.<|im_end|>\nNo.<|im_end|>\n"


def test_a_configuration_gives_template_and_special_tokens(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    path, source = tmp_path / "tokenizer_config.json", write_chats(tmp_path / "a.jsonl", CHAT[1:])
    write(path, json.dumps({**config, "chat_template": LLAMA2}))

    folder = pack(source, tmp_path / "p", chat_template=path)

    assert texts(folder) == [
        "<s>[INST] Größe? [/INST] Drei Äpfel. </s><s>[INST] And? [/INST] No. </s>"
    ]
    assert said(folder) == [" Drei Äpfel. </s> No. </s>"]


def test_of_several_templates_the_one_called_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    path = write(tmp_path / "tokenizer_config.json", json.dumps({"chat_template": named}))
    source = write_chats(tmp_path / "a.jsonl", CHAT)

    assert said(pack(source, tmp_path / "p", chat_template=path))
    write(path, json.dumps({"chat_template": named[:1]}))
    with pytest.raises(SourceError, check=At(path)):
        pack(source, tmp_path / "q", chat_template=path)


def test_special_tokens_of_a_jinja_file_are_looked_for_beside_it(tmp_path: Path) -> None:
    template = write(tmp_path / "chat_template.jinja", LLAMA2)
    source = write_chats(tmp_path / "a.jsonl", CHAT[1:])

    with pytest.raises(SourceError, check=At("chat_template.jinja")) as caught:
        pack(source, tmp_path / "p", chat_template=template)
    write(tmp_path / "tokenizer_config.json", '{"bos_token": "<s>", "eos_token": "</s>"}')
    plan = plan_tokens(source, TokenOptions(chat_template=template))
    assert plan.recipe.identity["chat_template"]

    assert caught.value.path == template


@pytest.mark.parametrize("answer", ["Drei Äpfel.", "3", " 3\n"])
def test_thoughts_that_earlier_turns_lose_do_not_move_the_targets(
    tmp_path: Path, answer: str
) -> None:
    template = write(tmp_path / "chat.jinja", THINKING)
    chat = [*CHAT[:2], {"role": "assistant", "content": answer}, *CHAT[3:]]
    source = write_chats(tmp_path / "a.jsonl", chat)

    folder = pack(source, tmp_path / "p", chat_template=template)

    assert said(folder) == [f"{answer}<|end|><think></think>No.<|end|>"]


@pytest.mark.parametrize("answer", ["Drei Äpfel.", "3", "One.\nTwo.\nThree.", "<think>?</think>3"])
def test_thoughts_inside_of_earlier_turns_do_not_matter_either(
    tmp_path: Path, answer: str
) -> None:
    template = write(tmp_path / "chat.jinja", THINKING)
    chat = [dict(message) for message in CHAT]
    chat[2]["content"] = f"<think>Hm, 3?</think>{answer}"

    folder = pack(write_chats(tmp_path / "a.jsonl", chat), tmp_path / "p", chat_template=template)

    kept = answer.rpartition("</think>")[2]
    assert said(folder) == [f"{kept}<|end|><think></think>No.<|end|>"]


def test_an_end_token_behind_the_last_message_alone_is_a_target_there(tmp_path: Path) -> None:
    text = (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    )
    config = {"eos_token": "<|endoftext|>", "chat_template": text}
    template = write(tmp_path / "tokenizer_config.json", json.dumps(config))

    folder = pack(write_chats(tmp_path / "a.jsonl", CHAT), tmp_path / "p", chat_template=template)

    assert said(folder) == ["Drei Äpfel.<|end|>\nNo.<|end|>\n<|endoftext|>"]


def test_an_opened_thought_that_an_answer_lacks_is_no_target(tmp_path: Path) -> None:
    head, answer, tail = CHATML.rpartition("assistant\n")
    opened = f"{head}{answer}<think>{tail}"
    template = write(tmp_path / "chat.jinja", opened)

    folder = pack(write_chats(tmp_path / "a.jsonl", CHAT), tmp_path / "p", chat_template=template)

    assert said(folder) == ["Drei Äpfel.<|im_end|>\nNo.<|im_end|>\n"]


def test_a_call_in_place_of_an_opened_thought_is_a_target_whole(tmp_path: Path) -> None:
    """``<tool>`` and ``<think>`` begin alike; each may be one token."""
    head, answer, tail = CHATML.rpartition("assistant\n")
    template = write(tmp_path / "chat.jinja", f"{head}{answer}<think>{tail}")
    chat = [*CHAT[:2], {"role": "assistant", "content": "<tool>f(1 > 0)</tool>"}, *CHAT[3:]]
    chat[1] = {"role": "user", "content": "1 < 2 or <t"}

    folder = pack(write_chats(tmp_path / "a.jsonl", chat), tmp_path / "p", chat_template=template)

    assert said(folder) == ["<tool>f(1 > 0)</tool><|im_end|>\nNo.<|im_end|>\n"]


@pytest.mark.parametrize(
    "begin",
    [
        "{% if messages and messages[0].role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}",
        "{{ '<s>' if messages else '' }}",
    ],
    ids=["system", "bos"],
)
def test_what_a_template_writes_before_a_first_answer_is_no_target(
    tmp_path: Path, begin: str
) -> None:
    template = write(tmp_path / "chat.jinja", begin + CHATML)

    folder = pack(
        write_chats(tmp_path / "a.jsonl", CHAT[2:]), tmp_path / "p", chat_template=template
    )

    assert said(folder) == ["Drei Äpfel.<|im_end|>\nNo.<|im_end|>\n"]


def test_a_turn_whose_place_cannot_be_told_is_refused_with_its_row(tmp_path: Path) -> None:
    template = write(tmp_path / "chat.jinja", "{{ messages | length }}" + CHATML)
    source = write_chats(tmp_path / "a.jsonl", CHAT[:1], CHAT)

    with pytest.raises(SourceError, check=At("a.jsonl, line 2")) as caught:
        pack(source, tmp_path / "p", chat_template=template)

    assert caught.value.path == "a.jsonl, line 2"
    assert "{% generation %}" in str(caught.value)


def test_a_template_that_writes_what_is_before_a_turn_otherwise_is_refused(tmp_path: Path) -> None:
    """Else what the user says would be a target, too."""
    text = (
        "{% set last = namespace(user=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '[now]' if loop.index0 == last.user else '' }}{{ m.role + ':' + m.content + ';' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    template, source = write(tmp_path / "c.jinja", text), write_chats(tmp_path / "a.jsonl", CHAT)

    with pytest.raises(SourceError, check=At("a.jsonl, line 1")):
        pack(source, tmp_path / "p", chat_template=template)
    source = write_chats(tmp_path / "a.jsonl", CHAT[:3])
    assert said(pack(source, tmp_path / "q", chat_template=template)) == ["Drei Äpfel.;"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_conversations_that_the_template_refuses_can_be_skipped(tmp_path: Path, kind: str) -> None:
    template = write(
        tmp_path / "chat.jinja",
        LLAMA2.replace("bos_token", "'<s>'").replace("eos_token", "'</s>'"),
    )
    source = write_chats(tmp_path / f"a.{kind}", CHAT[1:], CHAT, CHAT[1:3])

    options = TokenOptions(chat_template=template)
    summary = pack_tokens(source, tmp_path / "p", options, on_error="skip")

    assert len(documents(tmp_path / "p")) == 2
    ((item, error),) = summary.rejected
    assert item == ("a.jsonl, line 2" if kind == "jsonl" else "a.parquet, row 1")
    assert "only user and assistant" in error


@pytest.mark.parametrize(
    "row",
    [
        '{"messages": []}',
        '{"messages": null}',
        '{"messages": "hi"}',
        '{"messages": [{"from": "human"}]}',
        '{"chat": []}',
    ],
)
def test_rows_that_are_no_conversation_are_refused(tmp_path: Path, row: str) -> None:
    template = write(tmp_path / "chat.jinja", CHATML)

    with pytest.raises(SourceError) as caught:
        pack(write(tmp_path / "a.jsonl", row), tmp_path / "p", chat_template=template)

    assert caught.value.path == "a.jsonl, line 1"


def test_templates_run_in_a_sandbox(tmp_path: Path) -> None:
    for text in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
    ):
        template = open_template(write(tmp_path / "chat.jinja", text), None, None)
        with pytest.raises(ValueError):
            template.render(CHAT, None)
    for text in ("{% if %}", "{{ 'a' "):
        with pytest.raises(SourceError):
            open_template(write(tmp_path / "chat.jinja", text), None, None)


def test_what_templates_may_use_is_there(tmp_path: Path) -> None:
    text = (
        "{{ tools | tojson(indent=1) }}{{ strftime_now('%d %b %Y') }}"
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% if loop.index == 5 %}{% break %}{% endif %}{% endfor %}"
    )
    template = write(tmp_path / "chat.jinja", text)
    source = write_chats(tmp_path / "a.jsonl", CHAT, tools=[[{"name": "ü"}]])

    options: dict[str, Any] = {"chat_template": template, "chat_date": "2024-07-26"}
    folder = pack(source, tmp_path / "p", **options)

    assert texts(folder) == [
        '[\n {\n  "name": "ü"\n }\n]26 Jul 2024Be brief.Größe?Drei Äpfel.And?No.'
    ]
    other = plan_tokens(source, TokenOptions(**{**options, "chat_date": "2024-07-27"}))
    assert other.recipe.identity != plan_tokens(source, TokenOptions(**options)).recipe.identity


def test_conversations_without_a_template_are_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(SourceError, check=At("a.jsonl")):
        pack(write_chats(tmp_path / "a.jsonl", CHAT), tmp_path / "p")
    template = write(tmp_path / "chat.jinja", CHATML)
    with pytest.raises(ValueError):
        pack(write(tmp_path / "a.txt", "x"), tmp_path / "p", chat_template=template)


def test_the_command_packs_conversations(tmp_path: Path) -> None:
    template = write(tmp_path / "chat.jinja", CHATML)
    source = write(tmp_path / "a.jsonl", json.dumps({"turns": CHAT}))

    options = ["--chat-template", str(template), "--messages-column", "turns", "--eod", "10"]
    status = main(["tokens", str(source), str(tmp_path / "p"), *options])

    assert status == 0
    assert said(tmp_path / "p")
    assert texts(tmp_path / "p")[0].endswith("No.<|im_end|>\n")  # which ends so already


MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}!{% endgeneration %}|"
    "{% else %}{{ m.content }}|{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_template_that_marks_what_is_generated_decides_itself(tmp_path: Path, kind: str) -> None:
    template = write(tmp_path / "chat.jinja", MARKED)
    source = write_chats(tmp_path / f"a.{kind}", CHAT, CHAT[:2])

    folder = pack(source, tmp_path / "p", chat_template=template)

    assert texts(folder) == ["Be brief.|Größe?|A:Drei Äpfel.!|And?|A:No.!|", "Be brief.|Größe?|"]
    assert said(folder) == ["Drei Äpfel.!No.!", ""]


def test_marks_may_leave_out_a_part_of_a_turn_or_all_of_it(tmp_path: Path) -> None:
    """What prefixes could not tell: a thought is not learned."""
    text = (
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{{ messages | length }}"
    )
    template = write(tmp_path / "chat.jinja", text)

    folder = pack(write_chats(tmp_path / "a.jsonl", CHAT), tmp_path / "p", chat_template=template)

    assert said(folder) == ["Drei Äpfel.No."]


def test_marks_inside_of_marks_are_refused_with_the_row(tmp_path: Path) -> None:
    nested = MARKED.replace(
        "{{ m.content }}!", "{% generation %}{{ m.content }}{% endgeneration %}!"
    )
    template = write(tmp_path / "chat.jinja", nested)

    with pytest.raises(SourceError, check=At("a.jsonl, line 2")):
        pack(
            write_chats(tmp_path / "a.jsonl", CHAT[:2], CHAT),
            tmp_path / "p",
            chat_template=template,
        )


# -- what is learned -------------------------------------------------------------------------------

MARKS = (
    "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ ';' }}{% endfor %}"
)


@pytest.mark.parametrize("template", [CHATML, MARKS], ids=["told", "marked"])
@pytest.mark.parametrize(
    "mark",
    [
        *({"weight": 0}, {"train": False}, {"trainable": False}, {"loss": 0.0}),
        *({"masked": True}, {"masked": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_turns_that_are_not_to_be_trained_are_no_targets(
    tmp_path: Path, template: str, mark: dict[str, Any], kind: str
) -> None:
    chat = [dict(message) for message in CHAT]
    chat[2] |= mark
    source = write_chats(tmp_path / f"a.{kind}", chat)

    folder = pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template))

    (targets,) = said(folder)
    assert "Äpfel" not in targets
    assert targets.startswith("No.")


def test_a_turn_that_is_not_trained_needs_a_mark_of_its_own(tmp_path: Path) -> None:
    """Of several in a turn nothing tells which are its own: no other turn is left out in its place."""
    thinking = MARKS.replace(
        "{% generation %}", "{% generation %}Hm.{% endgeneration %}{% generation %}"
    )
    template = write(tmp_path / "c.jinja", thinking)
    chat = [CHAT[0], CHAT[1], {**CHAT[2], "weight": 0}, CHAT[3], CHAT[4]]

    assert said(
        pack(write_chats(tmp_path / "a.jsonl", CHAT), tmp_path / "a", chat_template=template)
    )
    with pytest.raises(SourceError, check=At("b.jsonl, line 2")):
        pack(write_chats(tmp_path / "b.jsonl", CHAT, chat), tmp_path / "b", chat_template=template)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    "mark",
    [
        {"weight": 0.5},
        {"masked": "yes"},
        {"train_detail": [{"begin_offset": 0, "end_offset": 2, "train": False}]},
        {"content": [{"type": "text", "text": "Drei", "train": False}]},
    ],
    ids=lambda mark: next(iter(mark)),
)
def test_a_turn_that_is_trained_in_part_is_refused(
    tmp_path: Path, mark: dict[str, Any], kind: str
) -> None:
    answer = {"role": "assistant", "content": "Drei Äpfel."} | mark
    source = write_chats(tmp_path / f"a.{kind}", [answer])
    template = "{% for m in messages %}{{ m.role + ':' + (m.content | string) }}{% endfor %}"

    with pytest.raises(
        SourceError, check=At(f"a.{kind}, {'row 0' if kind != 'jsonl' else 'line 1'}")
    ):
        pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template))


# What else a conversation may have: each would change its text.
ELSE: dict[str, Any] = {
    "tools": [{"name": "f"}],
    "system": "Be brief.",
    "prompt": CHAT[:2],
    "chat_template_kwargs": {"language": "de"},
    "enable_thinking": False,
    "label": False,
    "kto_tag": True,
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", ELSE)
def test_what_is_beside_a_conversation_and_not_used_is_refused_or_dropped(
    tmp_path: Path, name: str, kind: str
) -> None:
    template = write(tmp_path / "c.jinja", CHATML)
    source = write_chats(tmp_path / f"a.{kind}", CHAT[1:], **{name: [ELSE[name]]})

    with pytest.raises(
        SourceError, check=At(f"a.{kind}, {'row 0' if kind != 'jsonl' else 'line 1'}")
    ):
        pack(source, tmp_path / "p", chat_template=template)
    assert said(pack(source, tmp_path / "q", chat_template=template, drop=(name,)))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_text_of_the_first_turn_beside_a_conversation_is_no_matter(
    tmp_path: Path, kind: str
) -> None:
    template = write(tmp_path / "c.jinja", CHATML)
    """Nor is a class of the conversation: only flags are of answers that are not wanted."""
    beside: dict[str, Any] = {"prompt": ["Größe?"], "tools": [None], "label": [3]}
    source = write_chats(tmp_path / f"a.{kind}", CHAT[1:], **beside)

    assert said(pack(source, tmp_path / "p", chat_template=template))


@pytest.mark.parametrize("column", ["chat", "prompt"])
def test_conversations_may_lie_in_a_column_of_any_name(tmp_path: Path, column: str) -> None:
    """Also of one that is passed over, or refused, where it is beside them."""
    template = write(tmp_path / "c.jinja", CHATML)
    options = TokenOptions(chat_template=template, messages_column=column)
    source, lacking = tmp_path / "a.parquet", write_chats(tmp_path / "b.parquet", CHAT)
    pq.write_table(pa.table({column: [CHAT]}), source)

    assert "drop" not in plan_tokens(source, options).recipe.provenance
    with pytest.raises(SourceError, check=At(lacking)):
        plan_tokens(lacking, options)


@pytest.mark.parametrize(
    "name", ["tool_calls", "function_call", "function_calls", "reasoning_content", "thinking"]
)
def test_calls_that_the_template_does_not_use_are_refused_or_dropped(
    tmp_path: Path, name: str
) -> None:
    """Else the answer to learn is an empty one."""
    chat = [CHAT[1], {"role": "assistant", "content": "", name: [{"name": "f"}]}, *CHAT[3:]]
    source = write_chats(tmp_path / "a.jsonl", chat)

    template = write(tmp_path / "c.jinja", CHATML)
    with pytest.raises(SourceError, match=f"drop=..{name}", check=At("a.jsonl, line 1")):
        pack(source, tmp_path / "p", chat_template=template)
    without = TokenOptions(chat_template=template, drop=(name,))
    assert (
        plan_tokens(source, without).recipe.identity
        != plan_tokens(source, TokenOptions(chat_template=template)).recipe.identity
    )
    assert said(pack(source, tmp_path / "p", chat_template=template, drop=(name,)))
    whole = write(tmp_path / "d.jinja", "{% for m in messages %}{{ m | tojson }}{% endfor %}")
    assert '"f"' in said(pack(source, tmp_path / "q", chat_template=whole))[0]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    "answer",
    [{"value": "Ja."}, {"content": None, "refusal": "Nein."}, {"content": [{"text": "Ja."}]}],
    ids=str,
)
def test_a_message_whose_content_the_template_would_not_write_is_refused(
    tmp_path: Path, kind: str, answer: dict[str, Any]
) -> None:
    """Else nothing would be learned, or the word None, or how Python shows a list."""
    source = write_chats(tmp_path / f"a.{kind}", [{"role": "assistant"} | answer])
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"

    with pytest.raises(SourceError) as caught:
        pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template))

    assert "message 1" in str(caught.value)


@pytest.mark.parametrize("role", ["system", "tool"])
def test_a_message_that_the_template_leaves_out_is_refused(tmp_path: Path, role: str) -> None:
    """What stands in another form, such as a thought that earlier turns lose, is not left out."""
    source = write_chats(
        tmp_path / "a.jsonl", [CHAT[1], {"role": role, "content": "42"}, *CHAT[2:3]]
    )
    upper = "{% for m in messages %}{{ m.role }}:{{ m.content | replace('4', 'IV') }};{% endfor %}"
    template = f"{{% if m.role != '{role}' %}}{{{{ m.content }}}}{{% endif %}};"

    assert said(pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", upper)))
    with pytest.raises(SourceError, match=f"does not render the content of message 2 .'{role}'"):
        pack(
            source,
            tmp_path / "q",
            chat_template=write(
                tmp_path / "d.jinja", f"{{% for m in messages %}}{template}{{% endfor %}}"
            ),
        )


@pytest.mark.parametrize(
    ("template", "chat"),
    [
        (
            "{% for m in messages if m.role != 'tool' %}{{ m.role }}:{{ m.content }};{% endfor %}",
            [("user", "2+2?"), ("tool", "4"), ("assistant", "It is 4.")],
        ),
        (
            "{% for m in messages %}{{ m.role }}:{{ m.value }};{% endfor %}",
            [("user", "hi"), ("assistant", "yo")],
        ),
    ],
    ids=["found in a later one", "another key"],
)
def test_a_content_that_only_seems_to_be_written_is_refused(
    tmp_path: Path, template: str, chat: list[tuple[str, str]]
) -> None:
    messages = [{"role": role, "content": content} for role, content in chat]
    source = write_chats(tmp_path / "a.jsonl", messages)

    with pytest.raises(SourceError, check=At("a.jsonl, line 1")):
        pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template))


def test_text_beside_a_call_may_be_left_out_by_the_template(tmp_path: Path) -> None:
    """Llama 3.1's writes the call alone: that is the target, as transformers renders it."""
    call = {"role": "assistant", "content": "Let me look.", "tool_calls": [{"name": "f"}]}
    source = write_chats(tmp_path / "a.jsonl", [CHAT[1], call])
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.tool_calls %}{{ m.tool_calls[0].name }}"
        "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )

    folder = pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template))

    assert said(folder) == ["assistant:f;"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_nulls_of_a_message_are_the_same_in_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    """A call is told by content that is null, a text by no call: null stands for neither in the other."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    text = {"role": "assistant", "content": "Ja.", "tool_calls": None}
    source = write_chats(tmp_path / f"a.{kind}", [CHAT[1], call, CHAT[1], text])
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.content is none %}{{ m.tool_calls[0].name }}"
        "{% elif 'tool_calls' in m %}?{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )
    bare = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls }};{% endfor %}"

    folder = pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template))

    assert said(folder) == ["assistant:f;assistant:Ja.;"]
    with pytest.raises(SourceError, match="content of message 2 as a Python value, None"):
        pack(source, tmp_path / "q", chat_template=write(tmp_path / "d.jinja", bare))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_conversations_of_other_roles_are_an_error_or_counted(tmp_path: Path, kind: str) -> None:
    template = write(tmp_path / "c.jinja", CHATML)
    other = [{"role": "user", "content": "a"}, {"role": "model", "content": "b"}]
    all_other = write_chats(tmp_path / f"a.{kind}", other, other)
    one_other = write_chats(tmp_path / f"b.{kind}", CHAT, other)

    with pytest.raises(SourceError) as caught:
        pack(all_other, tmp_path / "p", chat_template=template)
    notes = pack_tokens(one_other, tmp_path / "q", TokenOptions(chat_template=template)).notes

    assert "'assistant'" in caught.value.hint
    assert any(note.startswith("1 document without a target") for note in notes)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_tools_count_whichever_file_has_them(tmp_path: Path, order: tuple[str, str]) -> None:
    template = "{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    with_tools, without = order
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    (tmp_path / "in").mkdir()
    write_chats(tmp_path / f"in/{with_tools}.parquet", chat, tools=[[{"name": "f"}]])
    write_chats(tmp_path / f"in/{without}.parquet", chat)

    folder = pack(
        tmp_path / "in", tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template)
    )

    assert sorted(texts(folder)) == ["1xy", "xy"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tools_are_objects_in_a_list_or_in_its_text_and_an_empty_text_has_none(
    tmp_path: Path, kind: str
) -> None:
    template = "{% if tools %}{{ tools[0].name }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    written = write(tmp_path / "c.jinja", template)
    empty = write_chats(
        tmp_path / f"a.{kind}", *[CHAT] * 4, tools=["", " ", "[]", '[{"name": "f"}]']
    )
    assert [text[0] for text in texts(pack(empty, tmp_path / "p", chat_template=written))] == [
        *"BBBf"
    ]

    for number, tools in enumerate(({"name": "f"}, '{"name": "f"}', ["f"], '["{}"]')):
        source = write_chats(tmp_path / f"{number}.{kind}", CHAT, tools=[tools])
        with pytest.raises(SourceError, match="'tools'"):
            pack(source, tmp_path / "q", chat_template=written)


@pytest.mark.parametrize("content", ["", None])
def test_the_rest_of_a_turn_that_loses_its_thought_is_a_target(
    tmp_path: Path, content: str | None
) -> None:
    """As a call of a tool, with nothing said beside."""
    template = """\
{%- set last = namespace(user=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {{- '<|' + m.role + '|>' }}
    {%- if m.role == 'assistant' and loop.index0 > last.user %}{{- '<think></think>' }}{% endif %}
    {{- m.content or '' }}{% if m.call %}{{- '<call>' + m.call + '</call>' }}{% endif %}{{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
    chat = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": content, "call": "f(1)"},
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": "ok"},
    ]
    source = write_chats(tmp_path / "a.jsonl", chat)

    folder = pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", template))

    assert said(folder) == ["<call>f(1)</call><|end|><think></think>ok<|end|>"]


def test_a_template_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    deep = "{% if true %}" * 3000 + "{% endif %}" * 3000
    source = write_chats(tmp_path / "a.jsonl", CHAT)

    with pytest.raises(SourceError, check=At("c.jinja")):
        pack(source, tmp_path / "p", chat_template=write(tmp_path / "c.jinja", deep))


def test_tokens_of_blanks_in_an_answer_are_targets_where_a_tokenizer_trims_their_places(
    tmp_path: Path, bpe: str
) -> None:
    """As transformers' own mask has it; NeoX, RoBERTa and Pythia trim."""
    trimming = json.loads(bpe)
    trimming["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    chat = [
        {"role": "user", "content": "code"},
        {"role": "assistant", "content": "if x:\n        y\n\n    z  "},
    ]
    source = write_chats(tmp_path / "a.jsonl", chat)
    template = write(tmp_path / "c.jinja", CHATML)
    found = []
    for name, told in (("plain", json.loads(bpe)), ("trims", trimming)):
        tokenizer = write(tmp_path / f"{name}.json", json.dumps(told))
        folder = pack(source, tmp_path / name, chat_template=template, tokenizer=tokenizer)
        found.append((documents(folder), labels_of(folder)))

    assert found[0] == found[1]
    (ids,), (labels,) = found[0]
    first = next(i for i, label in enumerate(labels) if label != -100)
    assert labels[first:-1] == ids[first:-1]  # without a hole


def test_a_tokenizer_that_drops_merges_at_random_does_not_here(tmp_path: Path, bpe: str) -> None:
    drawing = json.loads(bpe)
    drawing["model"]["dropout"] = 0.5
    source = write(tmp_path / "a.txt", "the assistant and the user " * 200)
    folders = [
        pack(source, tmp_path / name, tokenizer=write(tmp_path / f"{name}.json", json.dumps(told)))
        for name, told in (("plain", json.loads(bpe)), ("drawn", drawing))
    ]

    assert documents(folders[0]) == documents(folders[1])


def test_a_document_that_the_tokenizer_cannot_encode_is_left_out_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bpe: str
) -> None:
    """As where its library panics: that is no Exception."""

    class Panic(BaseException):
        pass

    encode = JsonTokenizer.encode

    def fail(self: JsonTokenizer, given: Documents) -> Documents:
        if b"bad" in given.data.tobytes():
            raise Panic("index out of range")
        return encode(self, given)

    monkeypatch.setattr(JsonTokenizer, "encode", fail)
    source = write(tmp_path / "a.txt", "one\nbad\ntwo\n")
    options: dict[str, Any] = {"tokenizer": write(tmp_path / "t.json", bpe), "documents": "line"}

    with pytest.raises(SourceError, check=At("a.txt, line 2")):
        pack_tokens(source, tmp_path / "fail", TokenOptions(**options))
    summary = pack_tokens(source, tmp_path / "p", TokenOptions(**options), on_error="skip")

    assert len(summary.rejected) == 1
    source.write_text("one\ntwo\n")
    assert documents(tmp_path / "p") == documents(pack(source, tmp_path / "good", **options))


def test_a_document_that_begins_with_a_line_end_is_in_the_line_that_it_ends(
    tmp_path: Path,
) -> None:
    known = tokenizers.models.WordLevel({"good": 0}, unk_token="<unk>")
    tokenizer = write(tmp_path / "t.json", tokenizers.Tokenizer(known).to_str())
    source = write(tmp_path / "a.txt", "good--\nbad--good--\n\nbad")
    options = TokenOptions(documents="--", tokenizer=tokenizer, eod="none")

    summary = pack_tokens(source, tmp_path / "p", options, on_error="skip")

    assert [item for item, _ in summary.rejected] == ["a.txt, line 1", "a.txt, line 2"]
    assert documents(tmp_path / "p") == [[0], [0]]


def test_documents_of_val_that_the_tokenizer_cannot_encode_are_listed_too(tmp_path: Path) -> None:
    known = tokenizers.models.WordLevel({f"{i}": i for i in range(40)}, unk_token="<unk>")
    tokenizer = write(tmp_path / "t.json", tokenizers.Tokenizer(known).to_str())
    lines = [f"{i}" if i % 2 else f"bad {i}" for i in range(40)]
    source = write(tmp_path / "a.txt", "\n".join(lines))
    options: dict[str, Any] = {"documents": "line", "val_share": 0.5}
    as_bytes = texts(pack(source, tmp_path / "bytes", **options) / "val")

    options |= {"tokenizer": tokenizer, "eod": "none"}
    summary = pack_tokens(source, tmp_path / "p", TokenOptions(**options), on_error="skip")

    assert any("bad" in line for line in as_bytes)
    places = [f"a.txt, line {i + 1}" for i in range(0, 40, 2)]
    assert sorted(item for item, _ in summary.rejected) == sorted(places)
    good = [[int(line)] for line in as_bytes if "bad" not in line]
    assert documents(tmp_path / "p/val") == good


def trained(kind: str) -> tokenizers.Tokenizer:
    """Return a small tokenizer of a kind."""
    models, trainers, cut = tokenizers.models, tokenizers.trainers, tokenizers.pre_tokenizers
    model, trainer, before = {
        "metaspace": (models.BPE(unk_token="<unk>"), trainers.BpeTrainer, cut.Metaspace()),
        "unigram": (models.Unigram(), trainers.UnigramTrainer, cut.Metaspace()),
        "wordpiece": (
            models.WordPiece(unk_token="<unk>"),
            trainers.WordPieceTrainer,
            cut.BertPreTokenizer(),
        ),
        "bytes": (models.BPE(), trainers.BpeTrainer, cut.ByteLevel(add_prefix_space=False)),
    }[kind]
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = before
    if kind == "bytes":
        made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    how: dict[str, Any] = {"special_tokens": ["<unk>", "<|s|>", "<|e|>"], "show_progress": False}
    how |= {"unk_token": "<unk>"} if kind == "unigram" else {}
    how |= {"initial_alphabet": cut.ByteLevel.alphabet()} if kind == "bytes" else {}
    corpus = ["user assistant code? if x:\n    y\n\n  z  ", "Drei Äpfel 猫 ok é"] * 20
    made.train_from_iterator(corpus, trainer(vocab_size=300 if kind == "bytes" else 120, **how))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["metaspace", "unigram", "wordpiece", "bytes"])
def test_the_mask_is_that_of_transformers(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    template = MARKS.replace("{{ m.role + ':' }}", "{{ '<|s|>' + m.role + ':' }}").replace(
        "';'", "'<|e|>'"
    )
    # Where a turn begins or ends with a blank that no token has, theirs has nothing, or all that follows.
    turns = ["if x:\n        y\n\n    z", "no  trail", "a", "Drei Äpfel 猫 ok"]
    chats = [[CHAT[1], {"role": "assistant", "content": turn}, *CHAT[3:]] for turn in turns]
    tokenizer = trained(kind)
    tokenizer.save(str(tmp_path / "t.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "t.json"))
    fast.chat_template = template

    folder = pack(
        write_chats(tmp_path / "a.jsonl", *chats),
        tmp_path / "p",
        chat_template=write(tmp_path / "c.jinja", template),
        tokenizer=tmp_path / "t.json",
    )

    how = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    for chat, ids, labels in zip(chats, documents(folder), labels_of(folder), strict=True):
        theirs = fast.apply_chat_template(chat, **how)
        assert ids == list(theirs["input_ids"])
        assert [label != -100 for label in labels] == [
            mask == 1 for mask in theirs["assistant_masks"]
        ]
