//! Texts to begin with, of a wanted length and all different.

use crate::Failure;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use std::path::Path;

/// Words that most vocabularies have whole.
const WORDS: &str = "the a little fox and bird old tree river house stone day night wind rain sun moon \
    went came saw found made took gave said asked ran slept sang under over near far with from into \
    small big red green cold warm happy sad quiet loud friend mother father child garden forest road";

/// Where prompts come from.
pub(crate) struct Prompts {
    words: Vec<String>,
    length: usize,
    shared: String,
}

impl Prompts {
    /// Prompts of about `length` tokens, a word each, of the words of a file where one is given; the
    /// first `shared` words are the same in all of them.
    ///
    /// # Errors
    /// Where the file cannot be read or has no words.
    pub(crate) fn new(
        file: Option<&Path>,
        length: usize,
        shared: usize,
    ) -> Result<Prompts, Failure> {
        let text = match file {
            Some(path) => {
                std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?
            }
            None => WORDS.to_owned(),
        };
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err("the file of prompts has no words".into());
        }
        let mut prompts = Prompts { words, length: shared.min(length), shared: String::new() };
        prompts.shared = prompts.number(u64::MAX);
        prompts.length = length - prompts.length;
        Ok(prompts)
    }

    /// The prompt of this number, the same whenever it is asked for.
    pub(crate) fn number(&self, number: u64) -> String {
        let mut random = StdRng::seed_from_u64(number);
        let mut text = self.shared.clone();
        for _ in 0..self.length {
            if let Some(word) = self.words.choose(&mut random) {
                text.push_str(if text.is_empty() { "" } else { " " });
                text.push_str(word);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_what_they_should_and_no_more() {
        let prompts = Prompts::new(None, 40, 10).unwrap();
        let [one, two] = [0, 1].map(|n| prompts.number(n));
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((words(&one).len(), &words(&one)[..10]), (40, &words(&two)[..10]));
        assert_ne!(one, two);
        assert_eq!(one, prompts.number(0));
    }
}
