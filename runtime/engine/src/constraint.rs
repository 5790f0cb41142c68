//! Constraints on the text of a sequence: which tokens may come next.
//!
//! A grammar, or whatever else knows what may follow, implements [`TokenConstraint`]. It is asked for
//! a [`TokenMask`] before every choice and told every chosen token.

/// A set of tokens: those that may come next.
///
/// One bit for each token of the vocabulary, the lowest bit of the first word being token 0, as grammar
/// libraries lay them out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocab: usize,
}

impl TokenMask {
    /// No token of `vocab`.
    pub fn none(vocab: usize) -> TokenMask {
        TokenMask { words: vec![0; vocab.div_ceil(u32::BITS as usize)], vocab }
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Takes all tokens out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds a token; one outside the vocabulary is left out.
    pub fn allow(&mut self, token: u32) {
        if (token as usize) < self.vocab {
            self.words[(token / u32::BITS) as usize] |= 1 << (token % u32::BITS);
        }
    }

    /// Makes it the set whose bits are `words`; what lies beyond the vocabulary does not count, and
    /// words that are missing are 0.
    pub fn copy_words(&mut self, words: &[u32]) {
        self.clear();
        self.words.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
        let rest = self.vocab % u32::BITS as usize;
        if let (Some(last), 1..) = (self.words.last_mut(), rest) {
            *last &= (1 << rest) - 1;
        }
    }

    /// Whether a token is in the set.
    pub fn allows(&self, token: u32) -> bool {
        let word = self.words.get((token / u32::BITS) as usize).copied().unwrap_or(0);
        word >> (token % u32::BITS) & 1 == 1
    }

    /// Whether no token is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The words, lowest tokens first.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }
}

/// Decides which tokens may follow in one sequence.
///
/// It may be called on another thread each time. What it says when it refuses ends the request.
pub trait TokenConstraint: Send {
    /// Puts the tokens that may come next into `allowed`, which has none. An end token among them lets
    /// the model end the text there; end tokens alone make it.
    ///
    /// # Errors
    /// What went wrong, for whoever made the request.
    fn mask(&mut self, allowed: &mut TokenMask) -> Result<(), String>;

    /// Goes on behind a token that was chosen; never an end token.
    ///
    /// # Errors
    /// What went wrong, for whoever made the request.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Whether the text is complete and nothing may follow, not even an end token.
    fn is_complete(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_the_tokens_that_were_allowed_and_none_beyond_the_vocabulary() {
        let mut mask = TokenMask::none(70);
        assert!(mask.is_empty());
        for token in [0, 31, 32, 69, 70, 1000] {
            mask.allow(token);
        }
        let allowed = |mask: &TokenMask| (0..2000).filter(|&t| mask.allows(t)).collect::<Vec<_>>();
        assert_eq!(allowed(&mask), [0, 31, 32, 69]);
        mask.copy_words(&[2, 0, u32::MAX, u32::MAX]);
        assert_eq!(allowed(&mask), [1, 64, 65, 66, 67, 68, 69]);
        mask.copy_words(&[4]);
        assert_eq!(allowed(&mask), [2]);
        mask.clear();
        assert!(mask.is_empty());
    }
}
