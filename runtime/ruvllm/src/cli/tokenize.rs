//! `ruvllm tokenize`: text in, token ids out.

use super::args::TokenizeArgs;
use super::{Ended, Failure, setup, terminal};
use ruvllm::embedded;
use ruvllm::engine::{Model, open_tokenizer};
use std::io;

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
    let text = setup::read_text("standard input", io::stdin().lock())?;
    let ids = tokenizer.encode_with_special(&text, args.special, args.bos)?;
    let line: Vec<String> = ids.iter().map(u32::to_string).collect();
    terminal::print(&(line.join(" ") + "\n"))?;
    Ok(Ended::Done)
}
