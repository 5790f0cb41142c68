"""Anthropic's Python client against a server: `anthropic_client.py BASE_URL API_KEY`. Exits with an error where an answer is not as it should be."""

import json
import sys

import anthropic

base_url, api_key = sys.argv[1:]
# Its addresses begin with `/v1` themselves.
base_url = base_url.removesuffix("/v1")
client = anthropic.Anthropic(base_url=base_url, api_key=api_key, max_retries=0)

model = client.models.list().data[0].id
# The client has no argument for it.
greedy = {"temperature": 0}
tale = [{"role": "user", "content": "Once upon a time"}]
message = client.messages.create(model=model, max_tokens=12, messages=tale, extra_body=greedy)
text = message.content[0].text
assert text and message.stop_reason == "max_tokens" and message.usage.output_tokens == 12
assert message._request_id
counted = client.messages.count_tokens(model=model, messages=tale).input_tokens
assert counted == message.usage.input_tokens + message.usage.cache_read_input_tokens

with client.messages.stream(model=model, max_tokens=12, messages=tale, extra_body=greedy) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 12
assert [event.type for event in client.messages.create(model=model, max_tokens=3, messages=tale, stream=True)][-1] == (
    "message_stop"
)

# A stream that is left early.
with client.messages.stream(model=model, max_tokens=400, messages=tale) as stream:
    next(iter(stream))

tool = {
    "name": "walk",
    "description": "Goes.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"enum": ["river", "hill"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
}
called = client.messages.create(
    model=model,
    max_tokens=200,
    system="Be brief.",
    messages=tale,
    tools=[tool],
    tool_choice={"type": "tool", "name": "walk"},
)
call = called.content[0]
assert called.stop_reason == "tool_use" and call.type == "tool_use" and call.input["place"] in ("river", "hill")
with client.messages.stream(
    model=model, max_tokens=200, messages=tale, tools=[tool], tool_choice={"type": "any"}, extra_body=greedy
) as stream:
    assert stream.get_final_message().content[0].name == "walk"
with client.messages.stream(
    model=model,
    max_tokens=100,
    messages=tale,
    output_config={
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"kind": {"enum": ["fox", "owl"]}},
                "required": ["kind"],
                "additionalProperties": False,
            },
        }
    },
) as stream:
    assert json.loads(stream.get_final_text())["kind"] in ("fox", "owl")
followed = tale + [
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "There."}]},
]
client.messages.create(model=model, max_tokens=5, messages=followed, tools=[tool])


def refused(error, call):
    try:
        call()
    except error as found:
        assert found.body["error"]["message"] and found.request_id, found.body
        return
    raise AssertionError(f"no {error}")


refused(anthropic.NotFoundError, lambda: client.messages.create(model="none", max_tokens=1, messages=tale))
refused(
    anthropic.BadRequestError,
    lambda: client.messages.create(model=model, max_tokens=1, messages=tale, extra_body={"temperature": 9}),
)
stranger = anthropic.Anthropic(base_url=base_url, api_key="sk-none", max_retries=0)
refused(anthropic.AuthenticationError, lambda: stranger.messages.create(model=model, max_tokens=1, messages=tale))
print("anthropic", anthropic.__version__)
