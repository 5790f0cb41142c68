//! A server that ends with its test.

use crate::program::caches;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

pub(crate) struct Serving {
    pub(crate) child: Child,
    /// The lines before it listened.
    pub(crate) before: Vec<String>,
    /// The lines that it logs from here on.
    pub(crate) log: Receiver<String>,
    pub(crate) address: String,
    /// Where it listens for administrators.
    pub(crate) admin: Option<String>,
}

impl Serving {
    /// Starts a server, and waits until it listens. Its compiled kernels are where those of other runs are, unless
    /// the arguments name another place.
    pub(crate) fn start(args: &[&str]) -> Serving {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ruvllm"))
            .args(["serve", "--listen", "127.0.0.1:0", "--log-format", "json"])
            .args(args)
            .env("XDG_CACHE_HOME", caches())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, log) = mpsc::channel();
        // Read to the end, so that the server never waits for its reader.
        thread::spawn(move || {
            stderr.lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
        });
        // Warnings that are no log may come first.
        let mut before = Vec::new();
        let serving = loop {
            let line = log.recv().unwrap_or_else(|_| panic!("it ended: {before:?}"));
            match serde_json::from_str::<Value>(&line) {
                Ok(event) if event["message"] == "serving" => break event,
                _ => before.push(line),
            }
        };
        let address = |url: &Value| Some(url.as_str()?.split_once("://")?.1.to_owned());
        let (address, admin) = (address(&serving["url"]).unwrap(), address(&serving["admin"]));
        Serving { child, before, log, address, admin }
    }

    /// The answer to a request of `/v1/completions`, which must succeed.
    pub(crate) fn complete(&self, body: &str) -> String {
        let answer = self.post("/v1/completions", body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// The answer to a request of a route.
    pub(crate) fn post(&self, route: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send("", route, body).read_to_string(&mut answer).unwrap();
        answer
    }

    /// As [`Serving::post`], with an API key.
    pub(crate) fn post_as(&self, key: &str, route: &str, body: &str) -> String {
        let mut answer = String::new();
        let key = format!("authorization: Bearer {key}\r\n");
        self.send(&key, route, body).read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends a request with further headers; the answer can be read from the connection.
    pub(crate) fn send(&self, headers: &str, route: &str, body: &str) -> TcpStream {
        let address = &self.address;
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST {route} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-request-id: mine\r\n{headers}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    }
}

impl Drop for Serving {
    /// As `kill -9`.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
