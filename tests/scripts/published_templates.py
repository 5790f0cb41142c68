#!/usr/bin/env python3
"""Compares what ruvllm makes of published chat templates with what Jinja2 does, set up as transformers sets it up.

    published_templates.py RUVLLM [WHEEL]

The templates are those of the package axolotl, as it is installed or in a wheel of it (tests/clients/templates.txt);
RUVLLM is the program. Each renders each conversation below. A text must be the same, a refusal must have the same
reason, and where one renders with an error the other must. Needs `pip install jinja2`.
"""

import importlib.metadata
import json
import pathlib
import struct
import subprocess
import sys
import zipfile

import jinja2

from template_reference import environment

PACKAGE = "axolotl"
FOLDER = "axolotl/utils/chat_templates/templates/"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

# (template, conversation): why they differ.
KNOWN = {}

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Gives the weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "A <city>"}, "days": {"type": "integer", "default": 1},
            "units": {"type": "array", "items": {"type": "string", "enum": ["°C", "°F"]}}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "Tells the \"time\"", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {"city": "Zürich", "days": 3, "exact": True, "unit": None, "limits": [1.0, 2]}


def user(text):
    return {"role": "user", "content": text}


def call(arguments, name="weather", id="abcdef123"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, id="abcdef123", name="weather"):
    return {"role": "tool", "name": name, "tool_call_id": id, "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = user("Hello there ")
CALLED = {"role": "assistant", "content": "", "tool_calls": [call(ARGUMENTS)]}
SEVERAL = {"role": "assistant", "content": "Let me see.", "tool_calls": [call(ARGUMENTS), call({}, "now", "abcdef124")]}
# By name: the messages, the tools, and whether the answer is to begin.
CONVERSATIONS = {
    "plain": ([HELLO], None, True),
    "plain, answered": ([HELLO, {"role": "assistant", "content": "Hi."}], None, False),
    "system": ([SYSTEM, HELLO], None, True),
    "turns": ([SYSTEM, HELLO, {"role": "assistant", "content": " Hi.\n"}, user("It's \"5 °C\" <b>\n\n")], None, True),
    "thoughts": ([HELLO, {"role": "assistant", "content": "<think>\nWell.\n</think>\n\nHi."}, user("More")], None, True),
    "thoughts apart": ([HELLO, {"role": "assistant", "content": "Hi.", "reasoning_content": "Well."}, user("More")], None, True),
    "two questions": ([HELLO, user("Hello?")], None, True),
    "parts": ([user([{"type": "text", "text": "A"}, {"type": "text", "text": "B"}])], None, True),
    "no message": ([], None, True),
    "tools": ([SYSTEM, HELLO], TOOLS, True),
    "tools without a system text": ([HELLO], TOOLS, True),
    "no tools": ([HELLO], [], True),
    "call": ([HELLO, CALLED], TOOLS, False),
    "call and result": ([HELLO, CALLED, result('{"t": 5}')], TOOLS, True),
    "call whose tools are gone": ([HELLO, CALLED, result("5")], None, True),
    "calls and results": ([SYSTEM, HELLO, SEVERAL, result("5"), result("12:00", "abcdef124", "now")], TOOLS, True),
    "result and answer": ([HELLO, CALLED, result("5"), {"role": "assistant", "content": "It is 5."}, user("Thanks")], TOOLS, True),
    "call as text": ([HELLO, {"role": "assistant", "content": None, "tool_calls": [call(json.dumps(ARGUMENTS))]}, result("5"), HELLO], TOOLS, True),
    "result without a name": ([HELLO, CALLED, {"role": "tool", "tool_call_id": "abcdef123", "content": "5"}], TOOLS, True),
}


def templates(wheel):
    """The sources of the templates by their names."""
    name = lambda path: str(path).removeprefix(FOLDER)
    wanted = lambda path: str(path).startswith(FOLDER) and str(path).endswith(".jinja")
    if wheel:
        with zipfile.ZipFile(wheel) as file:
            return {name(path): file.read(path).decode() for path in file.namelist() if wanted(path)}
    files = importlib.metadata.distribution(PACKAGE).files or []
    return {name(path): path.locate().read_text(encoding="utf-8") for path in files if wanted(path)}


class Ruvllm:
    """A process of the program that renders one template."""

    def __init__(self, program, source):
        self.process = subprocess.Popen([program, "render-template"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # Its limits: bytes of memory, and seconds of each rendering.
        self.ok, _ = self.ask(struct.pack("<QQ", 1 << 30, 60))
        self.kind, self.answer = self.ask(json.dumps({"source": source, "tokens": TOKENS}).encode())

    def ask(self, request):
        self.process.stdin.write(struct.pack("<I", len(request)) + request)
        self.process.stdin.flush()
        kind = self.process.stdout.read(1)
        if not kind:
            raise SystemExit("the process that renders a template has ended")
        (length,) = struct.unpack("<I", self.process.stdout.read(4))
        return kind, self.process.stdout.read(length)

    def render(self, messages, tools, begin):
        """As `reference`."""
        kind, answer = self.kind, self.answer
        if kind == self.ok:
            kind, answer = self.ask(json.dumps({"messages": messages, "tools": tools, "add_generation_prompt": begin}).encode())
        if kind == self.ok:
            return "text", answer.decode()
        (error, reason), = json.loads(answer).items()
        return ("refused", reason) if error == "Refused" else ("error", reason)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def reference(source, messages, tools, begin):
    """What becomes of a conversation, a text, a refusal or an error, and which."""
    # A template may change what it is given.
    messages, tools = json.loads(json.dumps([messages, tools]))
    try:
        template = environment().from_string(source)
        return "text", template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=begin, **TOKENS)
    except jinja2.exceptions.TemplateError as error:
        kind = "refused" if type(error) is jinja2.exceptions.TemplateError else "error"
        return kind, str(error)
    # Whatever Python raises where values are not what a template thinks.
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def excerpt(text, other):
    """A text around the first place where another differs."""
    at = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    return f"{at}: {text[max(0, at - 60):at + 60]!r}"


def main():
    program, *wheel = sys.argv[1:]
    sources = templates(wheel[0] if wheel else None)
    if len(sources) < 30:
        raise SystemExit(f"{PACKAGE} has {len(sources)} templates; there were 36")
    counts, wrong = {"text": 0, "refused": 0, "error": 0}, []
    for name, source in sorted(sources.items()):
        ruvllm = Ruvllm(program, source)
        for conversation, of in CONVERSATIONS.items():
            (kind, expected), (found_kind, found) = reference(source, *of), ruvllm.render(*of)
            is_equal = kind == found_kind and (kind == "error" or expected == found)
            known = KNOWN.get((name, conversation))
            if is_equal and known:
                wrong.append(f"{name}, {conversation}: equal, and listed as a known difference")
            elif is_equal:
                counts[kind] += 1
            elif not known:
                wrong.append(f"{name}, {conversation}:\n  {found_kind} {excerpt(found, expected)}\n  not {kind} {excerpt(expected, found)}")
        ruvllm.close()
    missing = {name for name, _ in KNOWN} - sources.keys()
    wrong += [f"{name}: a known difference of a template that there is not" for name in sorted(missing)]
    print(f"{len(sources)} templates: {counts['text']} texts are equal, {counts['refused']} refusals and {counts['error']} errors; {len(KNOWN)} known differences")
    if wrong:
        raise SystemExit("\n".join(wrong))


main()
