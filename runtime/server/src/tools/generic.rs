//! The format for models whose template has no place for tools, or teaches a way that is not known: tools are
//! described in the system text, and what was called and answered becomes messages of those who speak.

use serde_json::{Map, Value, json};

use super::Format;

/// What a model is told of its tools, and of how it calls them.
pub(super) fn describe(
    functions: &[&Map<String, Value>],
    single: bool,
    required: bool,
    format: Format,
) -> String {
    let mut text =
        "You can call functions. Each is described by a JSON object on a line:\n".to_owned();
    for function in functions {
        let mut function = (*function).clone();
        // It says how calls are checked, which is nothing to the model.
        function.remove("strict");
        text += &format!("{}\n", Value::from(function));
    }
    let call = json!({"name": "the function's name", "arguments": {"an argument": "its value"}});
    text += &match (format, single) {
        (Format::Generic, _) => {
            let form =
                r#"{"name": "the function's name", "arguments": {"an argument": "its value"}}"#;
            format!("To call one, answer with nothing but a JSON object of this form: {form}")
        }
        (_, true) => format!("To call one, answer in this form: {}", format.write(&[call])),
        (_, false) => {
            format!("To call two, answer in this form: {}", format.write(&[call.clone(), call]))
        }
    };
    text += match (single, format) {
        (true, _) => "\nMake one call at most.",
        (false, Format::Generic) => "\nTo make several calls, write one such object on each line.",
        (false, _) => "\nYou can make any number of calls.",
    };
    text += match required {
        true => " You must make a call now.",
        false => " If you need no function, answer in plain text.",
    };
    text
}

/// Messages without calls and tools' answers: a call is what its role said, as [`describe`] asks for it, and
/// the answer comes from the user.
pub(super) fn plain(messages: Vec<Value>) -> Vec<Value> {
    let mut names = Names::default();
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    // Whether the last message has tools' answers, which others of the user's join: many templates want
    // the roles to take turns.
    let mut answers = false;
    for mut message in messages {
        let calls = message.as_object_mut().and_then(|fields| fields.remove("tool_calls"));
        let calls = calls.unwrap_or_default();
        names.note(&calls);
        let mut text = content(&message);
        for call in calls.as_array().into_iter().flatten() {
            let function = &call["function"];
            let call = json!({"name": function["name"], "arguments": function["arguments"]});
            if !text.is_empty() {
                text.push('\n');
            }
            text += &call.to_string();
        }
        let is_answer = is_answer(&message);
        if is_answer {
            text = json!({"function": names.of(&message), "result": text}).to_string();
            message = json!({"role": "user"});
        }
        let joins = answers && message["role"] == "user";
        match out.last_mut().filter(|_| joins) {
            Some(last) => last["content"] = format!("{}\n{text}", content(last)).into(),
            None => {
                message["content"] = text.into();
                out.push(message);
            }
        }
        answers = is_answer || joins;
    }
    out
}

/// The names of the functions that were called, by the ids of the calls.
#[derive(Default)]
pub(super) struct Names(Map<String, Value>);

impl Names {
    /// Adds the calls of a message.
    pub(super) fn note(&mut self, calls: &Value) {
        for call in calls.as_array().into_iter().flatten() {
            if let Some(id) = call["id"].as_str() {
                self.0.insert(id.to_owned(), call["function"]["name"].clone());
            }
        }
    }

    /// The name of the function that gave an answer: the one that the message has, or else that of the
    /// call.
    pub(super) fn of(&self, answer: &Value) -> Option<Value> {
        let by_id = || self.0.get(answer["tool_call_id"].as_str()?).cloned();
        Some(answer["name"].clone()).filter(Value::is_string).or_else(by_id)
    }
}

/// Whether a message is what a tool answered.
pub(super) fn is_answer(message: &Value) -> bool {
    message["role"] == "tool" || message["role"] == "function"
}

pub(super) fn content(message: &Value) -> String {
    message["content"].as_str().unwrap_or_default().to_owned()
}

/// Puts a text into the system message, or before the first message of the user's.
pub(super) fn with_text(mut messages: Vec<Value>, text: &str, role: &str) -> Vec<Value> {
    match messages.iter_mut().find(|message| message["role"] == role) {
        Some(message) if role == "system" => {
            let own = content(message);
            let between = if own.is_empty() { "" } else { "\n\n" };
            message["content"] = format!("{own}{between}{text}").into();
        }
        Some(message) => message["content"] = format!("{text}\n\n{}", content(message)).into(),
        None => messages.insert(0, json!({"role": role, "content": text})),
    }
    messages
}

/// Gives the system message a field `tools`: a text of what the functions are.
pub(super) fn with_field(messages: &mut Vec<Value>, tools: &Value) {
    if !messages.iter().any(|message| message["role"] == "system") {
        let text = "You are a helpful assistant with some tools.";
        messages.insert(0, json!({"role": "system", "content": text}));
    }
    let functions = tools.as_array().into_iter().flatten().map(|tool| tool["function"].clone());
    let functions = Value::from_iter(functions).to_string();
    if let Some(system) = messages.iter_mut().find(|message| message["role"] == "system") {
        system["tools"] = functions.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_answers_become_texts_of_roles_that_take_turns() {
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": {"a": 1}}});
        let messages = vec![
            json!({"role": "user", "content": "Go."}),
            json!({"role": "assistant", "content": "", "tool_calls": [call("1", "walk"), call("2", "fly")]}),
            json!({"role": "tool", "tool_call_id": "2", "content": "No wings."}),
            json!({"role": "tool", "tool_call_id": "1", "content": "There."}),
            json!({"role": "user", "content": "Thanks."}),
            json!({"role": "user", "content": "And now?"}),
            json!({"role": "assistant", "content": "Home."}),
        ];
        let plain = plain(messages);
        let roles: Vec<&Value> = plain.iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
        let said = "{\"name\":\"walk\",\"arguments\":{\"a\":1}}\n{\"name\":\"fly\",\"arguments\":{\"a\":1}}";
        assert_eq!(plain[1], json!({"role": "assistant", "content": said}));
        let answered = "{\"function\":\"fly\",\"result\":\"No wings.\"}\n{\"function\":\"walk\",\"result\":\"There.\"}\nThanks.\nAnd now?";
        assert_eq!(plain[2], json!({"role": "user", "content": answered}));
    }

    #[test]
    fn a_description_joins_the_system_text_or_the_first_question() {
        let messages = vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Go."}),
        ];
        let with = with_text(messages.clone(), "Tools.", "system");
        assert_eq!(with[0]["content"], "Be brief.\n\nTools.");
        let with = with_text(messages[1..].to_vec(), "Tools.", "system");
        assert_eq!(with[0], json!({"role": "system", "content": "Tools."}));
        let with = with_text(messages[1..].to_vec(), "Tools.", "user");
        assert_eq!(with, [json!({"role": "user", "content": "Tools.\n\nGo."})]);
    }
}
