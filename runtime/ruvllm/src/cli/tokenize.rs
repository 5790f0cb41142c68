//! `ruvllm tokenize`: text in, token ids out.

use super::args::TokenizeArgs;
use super::{Ended, Failure};
use ruvllm::embedded;
use ruvllm::engine::{Model, open_tokenizer};
use std::io::{self, Read as _, Write as _};

pub(crate) fn main(args: &TokenizeArgs) -> Result<Ended, Failure> {
    let (opened, demo);
    let tokenizer = match &args.model {
        Some(path) => {
            opened = open_tokenizer(path)?;
            &opened
        }
        None => {
            demo = Model::from_static(embedded::demo_model(), embedded::DEMO_MODEL_NAME)?;
            demo.tokenizer()
        }
    };
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        format!("standard input is not UTF-8 from byte {} on", error.utf8_error().valid_up_to())
    })?;
    let ids = tokenizer.encode_with_special(&text, args.special, args.bos)?;
    let line: Vec<String> = ids.iter().map(u32::to_string).collect();
    writeln!(io::stdout().lock(), "{}", line.join(" "))?;
    Ok(Ended::Done)
}
