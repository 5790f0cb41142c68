//! What a program of tests prints, read line by line.

use std::time::Duration;

/// What all programs together came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    passed: usize,
    ignored: usize,
    /// Names of failed tests, and of programs that failed without one.
    pub(crate) failed: Vec<String>,
    /// Tests that say of themselves that they did not run, with the reason.
    skipped: Vec<(String, String)>,
    /// Seconds that each test took.
    times: Vec<(f64, String)>,
}

impl Outcome {
    /// What others came to is part of it, too.
    pub(crate) fn add(&mut self, other: Outcome) {
        let Outcome { passed, ignored, failed, skipped, times } = other;
        self.passed += passed;
        self.ignored += ignored;
        self.failed.extend(failed);
        self.skipped.extend(skipped);
        self.times.extend(times);
    }

    /// Counts, skipped tests and the slowest ones, as text.
    pub(crate) fn summary(&self, slowest: usize, elapsed: Duration) -> String {
        let mut lines = vec![format!(
            "{} passed, {} failed, {} ignored, {} skipped in {} s",
            self.passed - self.skipped.len(),
            self.failed.len(),
            self.ignored,
            self.skipped.len(),
            elapsed.as_secs(),
        )];
        lines.extend(self.skipped.iter().map(|(test, reason)| format!("skipped {test}: {reason}")));
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by(|a, b| b.0.total_cmp(&a.0));
        lines.push("the slowest tests:".to_owned());
        lines
            .extend(times.iter().take(slowest).map(|(time, test)| format!("{time:8.2} s  {test}")));
        lines.join("\n")
    }

    /// What makes the whole a failure.
    pub(crate) fn complaints(&self, never_skip: &[String]) -> Vec<String> {
        let unwanted = self.skipped.iter().filter(|(_, reason)| {
            never_skip.iter().any(|text| reason.to_lowercase().contains(&text.to_lowercase()))
        });
        let unwanted = unwanted.map(|(test, reason)| format!("{test} was skipped: {reason}"));
        self.failed.iter().cloned().chain(unwanted).collect()
    }
}

/// Reads the output of one program.
pub(crate) struct Reader<'a> {
    outcome: &'a mut Outcome,
    /// Between the results and the summary the harness prints what passing tests printed.
    within_successes: bool,
    /// The test whose output is being read.
    test: String,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(outcome: &'a mut Outcome) -> Self {
        Self { outcome, within_successes: false, test: String::new() }
    }

    /// Takes the next line, and says whether it is to be shown: what passing tests print is not.
    pub(crate) fn shown(&mut self, line: &str) -> bool {
        if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            name.clone_into(&mut self.test);
        } else if line == "successes:" {
            self.within_successes = true;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.within_successes = false;
        } else if self.within_successes {
            if let Some(reason) = line.strip_prefix("skipped: ")
                && self.outcome.skipped.last().is_none_or(|(test, _)| *test != self.test)
            {
                self.outcome.skipped.push((self.test.clone(), reason.to_owned()));
            }
        } else if let Some((name, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            self.result(name, result);
        }
        !self.within_successes
    }

    fn result(&mut self, name: &str, result: &str) {
        let (result, time) = result.split_once(" <").unwrap_or((result, ""));
        if let Ok(seconds) = time.trim_end_matches("s>").parse() {
            self.outcome.times.push((seconds, name.to_owned()));
        }
        match result {
            "ok" => self.outcome.passed += 1,
            "FAILED" => self.outcome.failed.push(name.to_owned()),
            _ => self.outcome.ignored += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 4 tests
test a::first ... ok <0.250s>
test second ... ignored, run by the test of the same name
test third ... FAILED <1.500s>
test fourth - should panic ... ok <0.001s>

successes:

---- a::first stdout ----
looking for node
skipped: no Node with the openai package
test inner ... ok <9.000s>


successes:
    a::first

failures:

---- third stdout ----
skipped: no such thing

failures:
    third

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.60s
";

    #[test]
    fn results_times_and_skipped_tests_are_read() {
        let mut outcome = Outcome::default();
        let mut reader = Reader::new(&mut outcome);
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| reader.shown(line)).collect();
        assert!(shown.contains(&"test third ... FAILED <1.500s>"));
        assert!(shown.contains(&"skipped: no such thing"), "output of failed tests is shown");
        assert!(!shown.contains(&"looking for node"), "that of others is not");

        assert_eq!((outcome.passed, outcome.ignored), (2, 1));
        assert_eq!(outcome.failed, ["third"]);
        assert_eq!(outcome.skipped.len(), 1);
        let summary = outcome.summary(2, Duration::from_secs(7));
        let expected = "1 passed, 1 failed, 1 ignored, 1 skipped in 7 s
skipped a::first: no Node with the openai package
the slowest tests:
    1.50 s  third
    0.25 s  a::first";
        assert_eq!(summary, expected);
    }

    #[test]
    fn a_test_that_was_skipped_although_its_tool_is_there_is_a_failure() {
        let mut outcome = Outcome::default();
        let mut reader = Reader::new(&mut outcome);
        let shown = OUTPUT.lines().filter(|line| reader.shown(line)).count();
        assert!(shown < OUTPUT.lines().count());
        assert_eq!(outcome.complaints(&["browser".to_owned()]), ["third"]);
        let all = outcome.complaints(&["node".to_owned()]);
        assert_eq!(all, ["third", "a::first was skipped: no Node with the openai package"]);
    }
}
