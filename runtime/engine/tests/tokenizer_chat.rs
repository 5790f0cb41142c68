//! Chat templates in the styles of the common model families, as Hugging Face renders them.

use ruvllm_engine::chat::{ChatError, ChatTemplate, Message, Renderer};

fn conversation() -> Vec<Message> {
    vec![
        Message::new("system", "Be brief. "),
        Message::new("user", " Hi\n"),
        Message::new("assistant", "Hello."),
        Message::new("user", "Bye"),
    ]
}

fn compile(source: &str) -> Result<ChatTemplate, ChatError> {
    ChatTemplate::new(source, "<s>", "</s>", &Renderer::InProcess)
}

fn render(source: &str, messages: &[Message], prompt: bool) -> String {
    compile(source).unwrap().render(messages, prompt).unwrap()
}

/// System text folded into the first user turn, strict alternation.
const BRACKETS: &str = r"{% if messages[0]['role'] == 'system' %}
  {% set turns = messages[1:] %}
  {% set head = '<<SYS>>\n' + messages[0]['content'].strip() + '\n<</SYS>>\n\n' %}
{% else %}
  {% set turns = messages %}
  {% set head = '' %}
{% endif %}
{% for turn in turns %}
  {% if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('Roles must alternate user/assistant') }}
  {% endif %}
  {% if turn['role'] == 'user' %}
    {{- bos_token + '[INST] ' + (head if loop.first else '') + turn['content'].strip() + ' [/INST]' -}}
  {% else %}
    {{- ' ' + turn['content'].strip() + ' ' + eos_token -}}
  {% endif %}
{% endfor %}";

#[test]
fn llama2_style_folds_the_system_message_into_the_first_turn() {
    assert_eq!(
        render(BRACKETS, &conversation(), false),
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Bye [/INST]"
    );
}

#[test]
fn refusals_carry_the_words_of_the_template() {
    let template = compile(BRACKETS).unwrap();
    let error = template.render(&[Message::new("assistant", "x")], false).unwrap_err();
    assert_eq!(error.code(), "chat_template_refused");
    assert!(error.to_string().ends_with("Roles must alternate user/assistant"), "{error}");
}

#[test]
fn llama3_style_adds_headers_and_bos_once() {
    let source = "{% set loop_messages = messages %}{% for message in loop_messages %}\
        {% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}\
        {% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
    assert_eq!(
        render(source, &conversation()[1..2], true),
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn chatml_supplies_a_default_system_message() {
    let source = "{% for message in messages %}{% if loop.first and messages[0].role != 'system' %}\
        {{ '<|im_start|>system\\nDefault<|im_end|>\\n' }}{% endif %}\
        {{'<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n'}}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    assert_eq!(
        render(source, &conversation()[3..], true),
        "<|im_start|>system\nDefault<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    );
    assert!(
        render(source, &conversation(), false)
            .starts_with("<|im_start|>system\nBe brief. <|im_end|>\n")
    );
}

#[test]
fn mistral_style_uses_namespaces_filters_and_no_tools() {
    let source = "{%- set ns = namespace(last_user=-1, system='') -%}\
        {%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}\
        {%- elif m.role == 'system' -%}{%- set ns.system = m.content.rstrip() + '\\n\\n' -%}{%- endif -%}{%- endfor -%}\
        {{- bos_token -}}{%- if tools is not none and tools -%}[TOOLS]{%- endif -%}\
        {%- for m in messages if m.role != 'system' -%}{%- if m.role == 'user' -%}\
        [INST] {% if loop.last and ns.last_user > 0 %}{{ ns.system }}{% endif %}{{ m['content'] }}[/INST]\
        {%- else -%}{{ ' ' ~ m.get('content') ~ eos_token }}{%- endif -%}{%- endfor -%}";
    assert_eq!(
        render(source, &conversation(), false),
        "<s>[INST]  Hi\n[/INST] Hello.</s>[INST] Be brief.\n\nBye[/INST]"
    );
}

#[test]
fn zephyr_style_trims_blocks_and_keeps_lines() {
    let source = "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + eos_token }}\n\
        {% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n\
        {% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n\
        {% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}";
    assert_eq!(
        render(source, &conversation()[2..], true),
        "<|assistant|>\nHello.</s>\n<|user|>\nBye</s>\n<|assistant|>\n"
    );
}

#[test]
fn python_methods_tests_and_json_work() {
    let source = "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}\
        {% if m.content is string and m.content.startswith(' ') %}{{ m.content.lstrip().split('\\n')[0] | upper }}\
        {% else %}{{ m | tojson }}{% endif %};{% endfor %}{{ {'a': [1, 2], 'b': '<é>'} | tojson }}\
        {{ {'a': []} | tojson(indent=2) }}{% if undefined_name is defined %}no{% endif %}{{ undefined_name }}";
    assert_eq!(
        render(source, &conversation(), false),
        "{\"role\": \"system\", \"content\": \"Be brief. \"};HI;{\"a\": [1, 2], \"b\": \"<é>\"}{\n  \"a\": []\n}"
    );
    let date = render("{{ strftime_now('%Y-%m-%d') }}", &[], false);
    assert!(date.len() == 10 && date.as_str() > "2024-01-01", "{date}");
}

#[test]
fn broken_templates_and_failures_say_where() {
    let error = compile("{% for m in messages %}").unwrap_err();
    assert_eq!(error.code(), "chat_template_syntax");
    assert!(error.to_string().contains("line 1") || error.to_string().contains(":1"), "{error}");
    let template = compile("a\n{{ messages[0].nothing.more }}").unwrap();
    let error = template.render(&[Message::new("user", "x")], false).unwrap_err();
    assert_eq!(error.code(), "chat_template_render");
    let endless =
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
    let error = compile(endless).unwrap().render(&[], false).unwrap_err();
    assert_eq!(error.code(), "chat_template_render");
}
