//! Which keys a thread looks at, cut into tiles.

use super::KvSegment;
use std::ops::Range;

/// Keys of a tile; a multiple of every vector width.
pub(super) const KEYS: usize = 64;

/// Positions end here, so that their differences are exact in f32.
pub(super) const LAST_POSITION: usize = 1 << 24;

/// The part of the visible keys that one thread takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Share {
    /// All of them.
    All,
    /// Those from number `start` to before number `end`, counted in the order of the cache.
    Run { start: usize, end: usize },
    /// Every `of`-th tile, starting with tile `index`.
    Turns { index: usize, of: usize },
}

/// Consecutive rows of a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    /// The segment.
    pub(super) segment: usize,
    /// Its first row.
    pub(super) row: usize,
    /// Rows.
    pub(super) len: usize,
}

/// The keys of a share, in tiles of pieces. Short segments, as a paged cache has, share tiles.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pieces: Vec<Piece>,
    /// Where each tile's pieces end.
    ends: Vec<usize>,
}

impl Plan {
    /// Lays out `share` of the keys that queries at positions `first` to `last` see.
    pub(super) fn build(
        &mut self,
        kv: &[KvSegment<'_>],
        window: Option<usize>,
        first: usize,
        last: usize,
        share: Share,
    ) {
        self.pieces.clear();
        self.ends.clear();
        let wanted = match share {
            Share::Run { start, end } => start..end,
            _ => 0..usize::MAX,
        };
        let (mut seen, mut filled) = (0, 0);
        for (i, segment) in kv.iter().enumerate() {
            let rows = visible(segment, window, first, last);
            let mut rest = clip(&rows, seen, &wanted);
            seen += rows.len();
            while !rest.is_empty() {
                let len = rest.len().min(KEYS - filled);
                self.pieces.push(Piece { segment: i, row: rest.start, len });
                rest.start += len;
                filled += len;
                if filled == KEYS {
                    self.ends.push(self.pieces.len());
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            self.ends.push(self.pieces.len());
        }
        if let Share::Turns { index, of } = share {
            self.keep_turns(index, of);
        }
    }

    fn keep_turns(&mut self, index: usize, of: usize) {
        let mut kept = Plan::default();
        for tile in (index..self.tiles()).step_by(of.max(1)) {
            kept.pieces.extend_from_slice(self.tile(tile));
            kept.ends.push(kept.pieces.len());
        }
        *self = kept;
    }

    /// Number of tiles.
    pub(super) fn tiles(&self) -> usize {
        self.ends.len()
    }

    /// The pieces of a tile, of at most [`KEYS`] rows together.
    pub(super) fn tile(&self, index: usize) -> &[Piece] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.pieces[start..self.ends[index]]
    }
}

/// The rows of a segment that queries at positions `first` to `last` see.
fn visible(
    segment: &KvSegment<'_>,
    window: Option<usize>,
    first: usize,
    last: usize,
) -> Range<usize> {
    // Below this no query sees; a window of 0 sees nothing at all.
    let low = window.map_or(0, |window| (first + 1).saturating_sub(window));
    let rows = low.saturating_sub(segment.start)..(last + 1).saturating_sub(segment.start);
    rows.start..rows.end.min(segment.len)
}

/// How many keys queries at positions `first` to `last` see.
pub(super) fn count(
    kv: &[KvSegment<'_>],
    window: Option<usize>,
    first: usize,
    last: usize,
) -> usize {
    kv.iter().map(|segment| visible(segment, window, first, last).len()).sum()
}

/// The part of `rows`, of which the first is number `seen` of all, that lies in `wanted`.
fn clip(rows: &Range<usize>, seen: usize, wanted: &Range<usize>) -> Range<usize> {
    let len = rows.len();
    let start = wanted.start.saturating_sub(seen).min(len);
    let end = wanted.end.saturating_sub(seen).min(len);
    rows.start + start..rows.start + end
}

#[cfg(test)]
mod tests {
    use super::super::KvLayout;
    use super::*;
    use ruvllm_abi::DType;

    fn segment(start: usize, len: usize) -> KvSegment<'static> {
        let dtype = DType::F32;
        let layout = KvLayout::Tokens;
        KvSegment {
            start,
            len,
            k_dtype: dtype,
            v_dtype: dtype,
            k_layout: layout,
            v_layout: layout,
            k: &[],
            v: &[],
        }
    }

    fn positions(plan: &Plan, kv: &[KvSegment<'_>]) -> Vec<usize> {
        let tiles = (0..plan.tiles()).flat_map(|tile| {
            let pieces = plan.tile(tile);
            assert!(pieces.iter().map(|piece| piece.len).sum::<usize>() <= KEYS);
            pieces
        });
        tiles
            .flat_map(|piece| {
                let start = kv[piece.segment].start + piece.row;
                start..start + piece.len
            })
            .collect()
    }

    #[test]
    fn shares_partition_what_the_queries_see() {
        let kv = [segment(0, 100), segment(100, 7), segment(107, 16), segment(123, 200)];
        for (first, last) in [(0usize, 0), (5, 9), (99, 130), (322, 322)] {
            for window in [None, Some(1), Some(40), Some(1000)] {
                let low = window.map_or(0, |w: usize| (first + 1).saturating_sub(w));
                let want: Vec<usize> = (low..=last).collect();
                for of in 1..5 {
                    let mut plan = Plan::default();
                    let mut run = Vec::new();
                    let mut turns = Vec::new();
                    let total = count(&kv, window, first, last);
                    for index in 0..of {
                        let Range { start, end } = crate::pool::split(total, of, index);
                        plan.build(&kv, window, first, last, Share::Run { start, end });
                        run.extend(positions(&plan, &kv));
                        plan.build(&kv, window, first, last, Share::Turns { index, of });
                        turns.extend(positions(&plan, &kv));
                    }
                    turns.sort_unstable();
                    assert_eq!(run, want);
                    assert_eq!(turns, want);
                }
                let mut plan = Plan::default();
                plan.build(&kv, window, first, last, Share::All);
                assert_eq!(positions(&plan, &kv), want);
                assert_eq!(plan.tiles(), want.len().div_ceil(KEYS));
            }
        }
    }

    #[test]
    fn nothing_visible_is_no_tile() {
        let mut plan = Plan::default();
        plan.build(&[segment(10, 5)], None, 3, 4, Share::All);
        assert_eq!(plan.tiles(), 0);
        plan.build(&[segment(10, 5)], Some(0), 12, 12, Share::All);
        assert_eq!(plan.tiles(), 0);
        plan.build(&[], None, 3, 4, Share::All);
        assert_eq!(plan.tiles(), 0);
    }
}
