//! Whose rows are whose: a call of a kernel holds rows of one scope only.

use std::ops::Range;

use ruvllm_host::Scope;
use smallvec::SmallVec;

/// Rows of a scope in a step of several up to which each is a call of its own. An instance for single
/// rows has a small window, and what is set back at a change of scope is that window; a call more costs
/// less than a large one.
const SINGLE: usize = 8;

/// Runs for which nothing is taken from the heap.
const FEW: usize = 16;

/// The scopes of some rows, one run after another.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowScopes {
    /// Where each run ends, and whose it is. Neighbours differ.
    runs: SmallVec<[(usize, Scope); FEW]>,
}

impl RowScopes {
    /// So many rows of one scope.
    pub(crate) fn of_one(rows: usize, scope: Scope) -> RowScopes {
        let mut scopes = RowScopes::default();
        scopes.push(rows, scope);
        scopes
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Adds rows behind those that there are.
    pub(crate) fn push(&mut self, rows: usize, scope: Scope) {
        if rows == 0 {
            return;
        }
        match self.runs.last_mut() {
            Some((end, last)) if *last == scope => *end += rows,
            last => {
                let end = last.map_or(0, |(end, _)| *end);
                self.runs.push((end + rows, scope));
            }
        }
    }

    /// Those of some of the rows, of which the first is row 0 then.
    pub(crate) fn slice(&self, rows: Range<usize>) -> RowScopes {
        let mut slice = RowScopes::default();
        let mut from = 0;
        for &(end, scope) in &self.runs {
            slice.push(end.min(rows.end).saturating_sub(from.max(rows.start)), scope);
            from = end;
        }
        slice
    }

    /// The calls that some of the rows take: rows of one scope each.
    pub(crate) fn runs(&self, rows: Range<usize>) -> impl Iterator<Item = (Range<usize>, Scope)> {
        let mixed = self.runs.len() > 1;
        let mut rest = &self.runs[self.runs.partition_point(|(end, _)| *end <= rows.start)..];
        let mut at = rows.start;
        std::iter::from_fn(move || {
            if at >= rows.end {
                return None;
            }
            let start = at;
            // Rows that nobody has claimed are a scope of their own.
            let (end, scope) = rest.first().copied().unwrap_or((rows.end, Scope::unique()));
            let end = end.min(rows.end);
            at = if mixed && end - start <= SINGLE { start + 1 } else { end };
            if at == end {
                rest = rest.get(1..).unwrap_or_default();
            }
            Some((start..at, scope))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(scopes: &RowScopes, rows: Range<usize>) -> Vec<(Range<usize>, Scope)> {
        scopes.runs(rows).collect()
    }

    #[test]
    fn rows_of_one_scope_are_one_call() {
        let scope = Scope::unique();
        let mut scopes = RowScopes::of_one(3, scope);
        scopes.push(2, scope);
        assert_eq!(calls(&scopes, 0..5), [(0..5, scope)]);
        assert_eq!(calls(&scopes, 2..4), [(2..4, scope)]);
        assert!(calls(&scopes, 2..2).is_empty());
    }

    #[test]
    fn no_call_has_rows_of_two_scopes_and_few_rows_are_calls_of_their_own() {
        let (a, b) = (Scope::unique(), Scope::unique());
        let mut scopes = RowScopes::of_one(2, a);
        scopes.push(0, b);
        scopes.push(20, b);
        scopes.push(1, a);
        assert_eq!(calls(&scopes, 0..23), [(0..1, a), (1..2, a), (2..22, b), (22..23, a)]);
        let single = calls(&scopes, 18..23);
        assert_eq!(single, [(18..19, b), (19..20, b), (20..21, b), (21..22, b), (22..23, a)]);
        assert_eq!(calls(&scopes, 3..15), [(3..15, b)]);
    }

    #[test]
    fn rows_that_nobody_has_claimed_share_no_scope() {
        let scope = Scope::unique();
        let found = calls(&RowScopes::of_one(1, scope), 0..3);
        assert_eq!(found[0], (0..1, scope));
        assert!(found[1..].iter().all(|(_, other)| *other != scope));
        assert_eq!(found.last().map(|(rows, _)| rows.end), Some(3));
    }
}
