//! The measurements as Markdown.

use crate::Options;
use crate::machine::Machine;
use crate::protocol::{Engine, Sample, Test};
use crate::rounds::{FIRST_PROMPT, Results, Subject};
use crate::stats::Summary;
use std::fmt;

/// What is printed in the end.
pub(crate) struct Report<'a> {
    pub(crate) options: &'a Options,
    pub(crate) machine: &'a Machine,
    pub(crate) subjects: &'a [Subject],
    pub(crate) tests: Vec<Test>,
    pub(crate) results: &'a Results,
}

/// A line of a table: a test of a model at a depth.
#[derive(Clone, Copy)]
struct Line<'a> {
    subject: &'a Subject,
    depth: usize,
    test: Test,
}

impl Line<'_> {
    /// As llama-bench calls it, `tg128 @ d4096`.
    fn name(&self) -> String {
        let test = self.test.name();
        if self.depth == 0 { test } else { format!("{test} @ d{}", self.depth) }
    }

    fn rate(&self, sample: &Sample) -> f64 {
        self.test.tokens() as f64 / sample.seconds
    }

    /// Bytes of weights read per second, of the bytes per second that the memory gave meanwhile.
    fn part_of_memory(&self, sample: &Sample) -> Option<f64> {
        let Test::Generate { steps, .. } = self.test else { return None };
        let bytes = self.subject.file.as_ref().ok()?.bytes_per_token? as f64;
        Some(bytes * steps as f64 / sample.seconds / sample.memory?)
    }
}

/// One engine's figures on one line.
struct Figures {
    /// Tokens per second.
    rate: Option<Summary>,
    part_of_memory: Option<Summary>,
    /// The part of the time that went into pack kernels or their twins.
    in_kernels: Option<Summary>,
}

impl Figures {
    fn rate(&self) -> String {
        self.rate.map_or_else(|| "not supported".to_owned(), tokens_per_second)
    }

    fn part_of_memory(&self) -> String {
        self.part_of_memory.map_or_else(String::new, percent)
    }
}

impl Report<'_> {
    fn lines(&self, generation: bool) -> impl Iterator<Item = Line<'_>> {
        let tests = self
            .tests
            .iter()
            .copied()
            .filter(move |test| matches!(test, Test::Generate { .. }) == generation);
        self.subjects.iter().flat_map(move |subject| {
            let tests = tests.clone();
            self.options.depth.iter().flat_map(move |&depth| {
                tests.clone().map(move |test| Line { subject, depth, test })
            })
        })
    }

    fn figures(&self, engine: Engine, line: Line<'_>) -> Figures {
        let samples: Vec<Sample> = self
            .results
            .speed
            .iter()
            .filter(|s| s.model == line.subject.name && s.depth == line.depth)
            .filter(|s| s.engine == engine && s.test == line.test)
            .filter_map(|s| s.result.as_ref().ok().copied())
            .collect();
        Figures {
            rate: Summary::of(samples.iter().map(|sample| line.rate(sample))),
            part_of_memory: Summary::of(samples.iter().filter_map(|s| line.part_of_memory(s))),
            in_kernels: Summary::of(samples.iter().filter_map(|sample| sample.in_kernels)),
        }
    }

    fn has(&self, engine: Engine) -> bool {
        self.options.engines.contains(&engine)
    }

    /// Engines that are held against each other, the one that the others are divided by first.
    fn compared(&self) -> Vec<Engine> {
        let all = Engine::ALL.into_iter().filter(|engine| !engine.is_twin());
        all.filter(|engine| self.has(*engine)).collect()
    }

    /// Engines in columns, with their part of the memory's speed for generation, and ratios.
    fn comparison(&self, generation: bool) -> Table {
        let engines = self.compared();
        let divisor = engines.first().copied().filter(|engine| *engine == Engine::LlamaCpp);
        let mut table = Table::new(["model", "test"]);
        for &engine in &engines {
            table.head.push(engine.name().to_owned());
            if generation {
                table.head.push("of memory".to_owned());
            }
            if divisor.is_some_and(|divisor| divisor != engine) {
                table.head.push("ratio".to_owned());
            }
        }
        for line in self.lines(generation) {
            let mut row = vec![line.subject.name.clone(), line.name()];
            let base = divisor.map(|divisor| self.figures(divisor, line));
            for &engine in &engines {
                let figures = self.figures(engine, line);
                row.push(figures.rate());
                if generation {
                    row.push(figures.part_of_memory());
                }
                if let Some(base) = base.as_ref().filter(|_| divisor != Some(engine)) {
                    row.push(ratio(figures.rate, base.rate));
                }
            }
            table.rows.push(row);
        }
        table
    }

    /// What the sandbox costs: by speed, and by the parts of the time that kernels and twins take, which
    /// a machine that is now slower, now faster changes little. All else is the same work on either side,
    /// so speeds are as what is left of the time. Twins of 128 bits are what a sandbox without any cost of
    /// its own would reach.
    fn sandbox(&self) -> Table {
        let mut table = Table::new([
            "model",
            "test",
            "sandbox on",
            "native twins",
            "ratio",
            "by kernels' time",
        ]);
        let narrow = self.has(Engine::RuvllmNative128);
        if narrow {
            table.head.extend(["128-bit twins", "ratio", "by kernels' time"].map(str::to_owned));
        }
        for line in self.lines(false).chain(self.lines(true)) {
            let native = self.figures(Engine::RuvllmNative, line);
            let against = |figures: &Figures| {
                let left = |of: &Figures| of.in_kernels.map(|part| 1.0 - part.median);
                let by_time = left(figures).zip(left(&native)).map(|(of, to)| of / to);
                let by_time = by_time.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
                [ratio(figures.rate, native.rate), by_time]
            };
            let on = self.figures(Engine::Ruvllm, line);
            let mut row = vec![line.subject.name.clone(), line.name(), on.rate(), native.rate()];
            row.extend(against(&on));
            if narrow {
                let narrow = self.figures(Engine::RuvllmNative128, line);
                row.push(narrow.rate());
                row.extend(against(&narrow));
            }
            table.rows.push(row);
        }
        table
    }

    fn starts(&self) -> Table {
        let mut table = Table::new(["model", "engine", "ms to first token", "peak memory / file"]);
        for subject in self.subjects {
            for engine in self.compared() {
                let starts: Vec<_> = self
                    .results
                    .first_token
                    .iter()
                    .filter(|start| start.model == subject.name && start.engine == engine)
                    .filter_map(|start| start.result.as_ref().ok())
                    .collect();
                let time = Summary::of(starts.iter().map(|start| start.seconds * 1e3));
                let bytes = subject.file.as_ref().map_or(f64::NAN, |file| file.bytes as f64);
                let memory = Summary::of(
                    starts.iter().filter_map(|start| Some(start.peak_memory? as f64 / bytes)),
                );
                table.rows.push(vec![
                    subject.name.clone(),
                    engine.name().to_owned(),
                    time.map_or_else(|| "not supported".to_owned(), milliseconds),
                    memory.map_or_else(String::new, |memory| format!("{:.2}", memory.median)),
                ]);
            }
        }
        table
    }

    /// Why cells have no figure, each reason once.
    fn reasons(&self) -> Vec<String> {
        let of_speed = self
            .results
            .speed
            .iter()
            .filter_map(|s| s.result.as_ref().err().map(|error| (&s.model, s.engine, error)));
        let of_starts = self
            .results
            .first_token
            .iter()
            .filter_map(|s| s.result.as_ref().err().map(|error| (&s.model, s.engine, error)));
        let mut reasons: Vec<String> = of_speed
            .chain(of_starts)
            .map(|(model, engine, error)| format!("{model}, {}: {error}", engine.name()))
            .collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }

    /// How fast the memory was while generation was measured, in bytes per second.
    fn memory(&self) -> Option<Summary> {
        let samples = self.results.speed.iter().filter_map(|s| s.result.as_ref().ok()?.memory);
        Summary::of(samples)
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        if let Some(memory) = self.memory() {
            let Summary { median, least, most } = memory;
            let [median, least, most] = [median, least, most].map(|rate| rate / 1e9);
            write!(f, " Memory reads meanwhile: {median:.1} GB/s ({least:.1}-{most:.1}).")?;
        }
        writeln!(
            f,
            " KV {}. Medians of {} rounds in alternating order, least and most in brackets.",
            self.options.kv, self.options.rounds
        )?;
        let tables = [
            ("Prompts, tokens per second:", self.comparison(false)),
            (
                "Generation, tokens per second, and bytes of weights read per second as a part of \
                 what the memory gave in turns with it:",
                self.comparison(true),
            ),
        ];
        for (caption, table) in tables {
            table.write(f, caption)?;
        }
        if self.has(Engine::Ruvllm) && self.has(Engine::RuvllmNative) {
            let caption = "Pack kernels in the sandbox and their native twins, tokens per second:";
            self.sandbox().write(f, caption)?;
        }
        let caption = format!(
            "From the start of the process to the first token of a prompt of {FIRST_PROMPT}, files \
             in the page cache:"
        );
        self.starts().write(f, &caption)?;
        if let Some(text) = Summary::of(self.results.first_text.iter().map(|s| s * 1e3)) {
            writeln!(
                f,
                "\n`ruvllm run` with the demo model, from its start to its first text: {} ms.",
                milliseconds(text)
            )?;
        }
        let reasons = self.reasons();
        if !reasons.is_empty() {
            writeln!(f, "\nNot supported:\n")?;
        }
        reasons.iter().try_for_each(|reason| writeln!(f, "- {reason}"))
    }
}

/// A Markdown table; its first two columns are text.
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new<const N: usize>(head: [&str; N]) -> Table {
        Table { head: head.map(str::to_owned).into(), rows: Vec::new() }
    }

    /// Nothing where there are no rows.
    fn write(&self, f: &mut fmt::Formatter<'_>, caption: &str) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{caption}\n\n| {} |", self.head.join(" | "))?;
        let rule = (0..self.head.len()).map(|column| if column < 2 { "---" } else { "---:" });
        writeln!(f, "|{}|", rule.collect::<Vec<_>>().join("|"))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

fn tokens_per_second(rate: Summary) -> String {
    let Summary { median, least, most } = rate;
    format!("{median:.1} ({least:.1}-{most:.1})")
}

fn milliseconds(time: Summary) -> String {
    let Summary { median, least, most } = time;
    format!("{median:.0} ({least:.0}-{most:.0})")
}

fn percent(part: Summary) -> String {
    let Summary { median, least, most } = part;
    format!("{:.0} % ({:.0}-{:.0})", median * 100.0, least * 100.0, most * 100.0)
}

/// Of two medians; empty where one is missing.
fn ratio(of: Option<Summary>, to: Option<Summary>) -> String {
    match (of, to) {
        (Some(of), Some(to)) => format!("{:.2}", of.median / to.median),
        _ => String::new(),
    }
}
