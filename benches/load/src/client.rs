//! One client of a server: completions as streams, each event with the time at which it came.

use crate::Failure;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _};
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::{Request, Response};

/// Where a server is, and how to ask it. Clones have connections of their own.
#[derive(Clone)]
pub(crate) struct Client {
    url: String,
    key: Option<String>,
    model: Option<String>,
    stop_at_eos: bool,
    agent: Agent,
}

/// What became of a request.
pub(crate) struct Answer {
    pub(crate) asked: Instant,
    /// When each event with text came: a token each, where the server holds none back.
    pub(crate) events: Vec<Instant>,
    pub(crate) text: String,
    pub(crate) usage: Usage,
    /// The status, or what else went wrong, where the answer is not whole.
    pub(crate) error: Option<String>,
}

/// Tokens, as the server counts them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) completion: u64,
}

impl Client {
    /// # Errors
    /// Where the address is not one of plain HTTP.
    pub(crate) fn new(url: &str, key: Option<String>) -> Result<Client, Failure> {
        if !url.starts_with("http://") {
            return Err(format!("`{url}` is no address of plain HTTP: http://HOST:PORT").into());
        }
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(Client { url, key, model: None, stop_at_eos: false, agent: agent() })
    }

    /// Names a model in requests; lets texts end where the model ends them.
    pub(crate) fn asking(self, model: Option<String>, stop_at_eos: bool) -> Client {
        Client { model, stop_at_eos, ..self }
    }

    /// The same server through a connection of its own.
    pub(crate) fn again(&self) -> Client {
        Client { agent: agent(), ..self.clone() }
    }

    /// Asks for a text of so many tokens, the likeliest each. `patience` is how many events are read
    /// before the connection is dropped.
    pub(crate) fn complete(&self, prompt: &str, tokens: usize, patience: usize) -> Answer {
        let mut answer = Answer {
            asked: Instant::now(),
            events: Vec::with_capacity(tokens),
            text: String::new(),
            usage: Usage::default(),
            error: None,
        };
        let mut body = json!({
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(model) = &self.model {
            body["model"] = json!(model);
        }
        if !self.stop_at_eos {
            body["ignore_eos"] = json!(true);
        }
        if let Err(error) = self.read(&body, patience, &mut answer) {
            answer.error = Some(error);
        }
        answer
    }

    /// Asks for the log-probabilities of texts, in one request.
    ///
    /// # Errors
    /// Where the server does not answer with them.
    pub(crate) fn score(&self, texts: &[String]) -> Result<(), Failure> {
        let mut body = json!({"prompt": texts, "max_tokens": 0, "echo": true, "logprobs": 1});
        if let Some(model) = &self.model {
            body["model"] = json!(model);
        }
        let path = "/v1/completions";
        let answer = self.ask(path, "application/json", body.to_string().as_bytes())?;
        let scored = |choice: &Value| choice["logprobs"]["token_logprobs"].is_array();
        let choices = answer["choices"].as_array().map_or(&[][..], Vec::as_slice);
        if choices.len() != texts.len() || !choices.iter().all(scored) {
            return Err(format!("{path}: no log-probabilities of the prompts: {answer}").into());
        }
        Ok(())
    }

    fn read(&self, body: &Value, patience: usize, answer: &mut Answer) -> Result<(), String> {
        let content = "application/json";
        let response = self.post("/v1/completions", content, body.to_string().as_bytes());
        let response = response.map_err(|error| error.to_string())?;
        if response.status() != 200 {
            return Err(response.status().as_str().to_owned());
        }
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.map_err(|error| error.to_string())?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Ok(());
            }
            let came = Instant::now();
            let event: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
            if !event["error"].is_null() {
                return Err(event["error"]["code"].as_str().unwrap_or("error").to_owned());
            }
            if let Some(text) = event["choices"][0]["text"].as_str() {
                if event["choices"][0]["finish_reason"].is_null() || !text.is_empty() {
                    answer.events.push(came);
                }
                answer.text.push_str(text);
            }
            let usage = &event["usage"];
            let count = |value: &Value| value.as_u64().unwrap_or(0);
            if usage.is_object() {
                answer.usage = Usage {
                    prompt: count(&usage["prompt_tokens"]),
                    cached: count(&usage["prompt_tokens_details"]["cached_tokens"]),
                    completion: count(&usage["completion_tokens"]),
                };
            }
            if answer.events.len() >= patience {
                return Ok(());
            }
        }
        Err("the stream ended early".to_owned())
    }

    /// # Errors
    /// What keeps the request from being answered at all.
    fn post(
        &self,
        path: &str,
        content: &str,
        body: &[u8],
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        self.send(
            Request::post(format!("{}{path}", self.url)).header("content-type", content),
            body,
        )
    }

    fn send(
        &self,
        mut request: ureq::http::request::Builder,
        body: &[u8],
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        self.agent.run(request.body(body)?)
    }

    /// Posts a body and gives the JSON that is answered.
    ///
    /// # Errors
    /// Where the answer is not one of success.
    pub(crate) fn ask(&self, path: &str, content: &str, body: &[u8]) -> Result<Value, Failure> {
        let mut response = self.post(path, content, body)?;
        let mut text = String::new();
        response.body_mut().as_reader().read_to_string(&mut text)?;
        if !response.status().is_success() {
            return Err(format!("{path}: {} {text}", response.status()).into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// The samples of `/metrics` whose names begin so, with their labels.
    ///
    /// # Errors
    /// Where the server gives none.
    pub(crate) fn metrics(&self, name: &str) -> Result<Vec<(String, f64)>, Failure> {
        let mut response = self.send(Request::get(format!("{}/metrics", self.url)), b"")?;
        if response.status() != 200 {
            return Err(format!("/metrics: {}", response.status()).into());
        }
        let text = response.body_mut().read_to_string()?;
        let samples = text.lines().filter(|line| line.starts_with(name));
        let samples = samples.filter_map(|line| {
            let (sample, value) = line.rsplit_once(' ')?;
            Some((sample.to_owned(), value.parse().ok()?))
        });
        Ok(samples.collect())
    }
}

impl Answer {
    /// From the request to the first event.
    pub(crate) fn first(&self) -> Option<Duration> {
        self.events.first().map(|first| *first - self.asked)
    }

    /// From each event to the next.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = (Instant, Instant)> + '_ {
        self.events.windows(2).map(|pair| (pair[0], pair[1]))
    }

    /// When the last of it came.
    pub(crate) fn end(&self) -> Instant {
        self.events.last().copied().unwrap_or(self.asked)
    }
}

fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false);
    config.timeout_connect(Some(Duration::from_secs(10))).build().into()
}
