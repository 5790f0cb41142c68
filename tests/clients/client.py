"""The official Python client against a server: `client.py BASE_URL API_KEY`. Exits with an error where an answer is not as it should be."""

import sys
from typing import Literal

import openai
from pydantic import BaseModel

base_url, api_key = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0)

model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model

tale = [{"role": "user", "content": "Once upon a time"}]
answer = client.chat.completions.create(
    model=model, messages=tale, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2, n=2, seed=1
)
assert len(answer.choices) == 2 and answer.choices[0].message.role == "assistant"
text = answer.choices[0].message.content
assert text and answer.choices[0].finish_reason == "length"
assert answer.usage.completion_tokens == 24
assert answer.usage.prompt_tokens_details.cached_tokens >= 0
assert len(answer.choices[0].logprobs.content) == 12
assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
assert answer._request_id

stream = client.chat.completions.create(
    model=model, messages=tale, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
)
pieces, usage = [], None
for chunk in stream:
    usage = chunk.usage or usage
    pieces += [choice.delta.content or "" for choice in chunk.choices]
assert "".join(pieces) == text and usage.completion_tokens == 12

# A stream that is left early.
with client.chat.completions.create(model=model, messages=tale, max_tokens=400, stream=True) as stream:
    next(iter(stream))

completion = client.completions.create(
    model=model, prompt=["Once upon a time", "The fox"], max_tokens=5, temperature=0, logprobs=1, stop=["never"]
)
assert [choice.index for choice in completion.choices] == [0, 1]
assert "".join(completion.choices[0].logprobs.tokens) == completion.choices[0].text
assert "".join(
    chunk.choices[0].text
    for chunk in client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=5, temperature=0, stream=True
    )
) == completion.choices[0].text


class Hero(BaseModel):
    kind: Literal["fox", "bear"]
    brave: bool


parsed = client.chat.completions.parse(model=model, messages=tale, response_format=Hero, max_tokens=100, seed=1)
assert isinstance(parsed.choices[0].message.parsed, Hero)

tool = {
    "type": "function",
    "function": {
        "name": "walk",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["river", "hill"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}
called = client.chat.completions.create(
    model=model, messages=tale, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200, seed=1
)
call = called.choices[0].message.tool_calls[0]
assert called.choices[0].finish_reason == "tool_calls" and call.function.name == "walk"
followed = tale + [
    called.choices[0].message,
    {"role": "tool", "tool_call_id": call.id, "content": "There."},
]
client.chat.completions.create(model=model, messages=followed, tools=[tool], max_tokens=5)
with client.chat.completions.stream(
    model=model, messages=tale, tools=[tool], tool_choice="required", max_tokens=200, seed=1, parallel_tool_calls=False
) as stream:
    stream.until_done()
    assert stream.get_final_completion().choices[0].message.tool_calls[0].function.name == "walk"

response = client.responses.create(model=model, input="Once upon a time", max_output_tokens=12, temperature=0)
assert response.output_text == text and response.status == "incomplete" and response.usage.output_tokens == 12
with client.responses.stream(model=model, input="Once upon a time", max_output_tokens=12, temperature=0) as stream:
    pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
assert "".join(pieces) == text
function = {"type": "function", "strict": True, **tool["function"]}
called = client.responses.create(
    model=model, input="Once upon a time", tools=[function], tool_choice="required", parallel_tool_calls=False
)
call = called.output[0]
assert call.type == "function_call" and call.name == "walk"
client.responses.create(
    model=model,
    input=[
        {"role": "user", "content": "Once upon a time"},
        *called.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "There."},
    ],
    max_output_tokens=5,
)
parsed = client.responses.parse(model=model, input="Once upon a time", text_format=Hero, max_output_tokens=100)
assert isinstance(parsed.output_parsed, Hero)

vectors = client.embeddings.create(model=model, input=["a fox", "a bear"]).data
assert abs(sum(x * x for x in vectors[1].embedding) - 1) < 1e-4
floats = client.embeddings.create(model=model, input="a bear", encoding_format="float").data[0].embedding
assert max(abs(x - y) for x, y in zip(floats, vectors[1].embedding)) < 1e-4


def refused(error, param, call):
    try:
        call()
    except error as found:
        assert found.param == param, found.param
        return
    raise AssertionError(f"no {error}")


refused(openai.NotFoundError, "model", lambda: client.chat.completions.create(model="none", messages=tale))
refused(
    openai.BadRequestError,
    "temperature",
    lambda: client.chat.completions.create(model=model, messages=tale, temperature=9),
)
refused(
    openai.BadRequestError,
    "previous_response_id",
    lambda: client.responses.create(model=model, input="And then?", previous_response_id="resp_1"),
)
stranger = openai.OpenAI(base_url=base_url, api_key="sk-none", max_retries=0)
refused(openai.AuthenticationError, None, lambda: stranger.models.list())
print("openai", openai.__version__)
