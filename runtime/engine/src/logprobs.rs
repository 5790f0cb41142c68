//! Log-probabilities of tokens.
//!
//! They are of the distribution that the model gives, `log_softmax` of its logits: before biases,
//! penalties, temperature, filters and constraints, all of which change what is chosen but not what the
//! model thinks.

use std::cmp::Ordering;

/// A token and the natural logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// The logarithm of its probability; minus infinity where the model gives it none.
    pub logprob: f32,
}

/// How likely a chosen token was, and which tokens were the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The logarithm of the chosen token's probability.
    pub chosen: f32,
    /// The likeliest tokens, the likeliest first, equal ones in the order of their ids.
    pub top: Vec<TokenLogprob>,
}

impl Logprobs {
    /// Those of `chosen` and of the `top` likeliest tokens, from logits `[vocab]`.
    pub fn of(logits: &[f32], chosen: u32, top: usize) -> Logprobs {
        let clean = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) };
        let logit =
            |token: u32| logits.get(token as usize).map_or(f32::NEG_INFINITY, |&x| clean(x));
        let best = logits.iter().fold(f32::NEG_INFINITY, |best, &x| best.max(clean(x)));
        let sum: f64 = logits.iter().map(|&x| f64::from(clean(x) - best).exp()).sum();
        let log_sum = f64::from(best) + sum.ln();
        let logprob = |token: u32| {
            let difference = f64::from(logit(token)) - log_sum;
            if difference.is_nan() { f32::NEG_INFINITY } else { difference as f32 }
        };
        let likelier =
            |a: &u32, b: &u32| -> Ordering { logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)) };
        let top = top.min(logits.len());
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        if 0 < top && top < tokens.len() {
            tokens.select_nth_unstable_by(top - 1, likelier);
        }
        tokens.truncate(top);
        tokens.sort_unstable_by(likelier);
        let top = tokens.into_iter().map(|token| TokenLogprob { token, logprob: logprob(token) });
        Logprobs { chosen: logprob(chosen), top: top.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_model_and_add_up_to_one() {
        let logits = [0.15f32, 0.5, 0.1, 0.25].map(|p| p.ln() + 3.0);
        let all = Logprobs::of(&logits, 2, 4);
        assert!((all.chosen - 0.1f32.ln()).abs() < 1e-6);
        let order: Vec<u32> = all.top.iter().map(|t| t.token).collect();
        assert_eq!(order, [1, 3, 0, 2]);
        let sum: f32 = all.top.iter().map(|t| t.logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let two = Logprobs::of(&logits, 1, 2);
        assert_eq!(
            (two.top.len(), two.chosen, two.top[0].logprob),
            (2, two.top[0].logprob, two.chosen)
        );
        assert!(Logprobs::of(&logits, 1, 0).top.is_empty());
    }

    #[test]
    fn what_is_no_number_has_no_probability() {
        let logprobs = Logprobs::of(&[f32::NAN, 1.0, f32::NEG_INFINITY], 0, 3);
        assert_eq!(logprobs.chosen, f32::NEG_INFINITY);
        assert_eq!((logprobs.top[0].token, logprobs.top[0].logprob), (1, 0.0));
        assert_eq!(Logprobs::of(&[f32::NAN; 2], 9, 5).top[1].logprob, f32::NEG_INFINITY);
    }
}
