//! Results, for people and for programs.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use crate::ToolError;

/// What a command found out.
pub trait Report: Display + Serialize {
    /// Whether the thing that was looked at is in order; decides between exit codes 0 and 1.
    fn passed(&self) -> bool {
        true
    }
}

/// Prints a report to standard output and gives the exit code.
pub fn print_report(report: &impl Report, as_json: bool) -> u8 {
    let text = if as_json {
        let mut document = json!({ "ok": report.passed() });
        // Reports are plain structs with string keys, which serialise.
        if let (Some(all), Ok(serde_json::Value::Object(fields))) =
            (document.as_object_mut(), serde_json::to_value(report))
        {
            all.extend(fields);
        }
        format!("{document:#}")
    } else {
        report.to_string().trim_end().to_owned()
    };
    // A reader that has gone away has seen enough.
    let _ = writeln!(io::stdout().lock(), "{text}");
    u8::from(!report.passed())
}

/// Prints an error, as JSON to standard output or as text to standard error, and gives its exit
/// code.
pub fn print_error(error: &ToolError, as_json: bool) -> u8 {
    if as_json {
        let details: Vec<_> = error
            .details()
            .into_iter()
            .map(|(code, location, message)| {
                json!({ "code": code, "location": location, "message": message })
            })
            .collect();
        let document = json!({
            "ok": false,
            "error": { "code": error.code(), "message": error.to_string(), "details": details },
        });
        let _ = writeln!(io::stdout().lock(), "{document:#}");
    } else {
        let _ = writeln!(io::stderr().lock(), "ruvllm-pack: {error}");
    }
    error.exit_code()
}
