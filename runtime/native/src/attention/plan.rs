//! Which keys a thread looks at, cut into tiles.

use super::{KvLayout, KvSegment};
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
    /// Those at positions from `start` to before `end`, in tiles that begin at multiples of [`KEYS`].
    Positions { start: usize, end: usize },
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

/// Lays out the keys of a share in tiles of pieces, one after another. Short segments, as a paged cache
/// has, share tiles.
pub(super) struct Plan<'a> {
    kv: &'a [KvSegment<'a>],
    window: Option<usize>,
    /// Positions of the first and the last query.
    first: usize,
    last: usize,
    /// The share's keys by number, where keys are shared out and not tiles.
    wanted: Range<usize>,
    /// The share's positions, where tiles begin at multiples of [`KEYS`].
    positions: Option<Range<usize>>,
    /// Tiles to leave to others before the next, and before each after it.
    skip: usize,
    others: usize,
    /// The next segment, and the visible keys of those before it.
    segment: usize,
    seen: usize,
    /// Rows of the segment before it that no tile has yet.
    rest: Range<usize>,
}

impl<'a> Plan<'a> {
    /// A plan of `share` of the keys that queries at positions `first` to `last` see.
    pub(super) fn new(
        kv: &'a [KvSegment<'a>],
        window: Option<usize>,
        first: usize,
        last: usize,
        share: Share,
    ) -> Plan<'a> {
        let mut plan = Plan {
            kv,
            window,
            first,
            last,
            wanted: 0..usize::MAX,
            positions: None,
            skip: 0,
            others: 0,
            segment: 0,
            seen: 0,
            rest: 0..0,
        };
        match share {
            Share::All => {}
            Share::Run { start, end } => plan.wanted = start..end,
            Share::Turns { index, of } => (plan.skip, plan.others) = (index, of.saturating_sub(1)),
            Share::Positions { start, end } => plan.positions = Some(start..end),
        }
        plan
    }

    /// Writes the pieces of the share's next tile, of at most [`KEYS`] rows together; false after the
    /// last.
    pub(super) fn next(&mut self, pieces: &mut Vec<Piece>) -> bool {
        for _ in 0..self.skip {
            self.tile(pieces);
        }
        self.skip = self.others;
        self.tile(pieces)
    }

    /// The next tile, whoever takes it.
    fn tile(&mut self, pieces: &mut Vec<Piece>) -> bool {
        pieces.clear();
        pieces.reserve(KEYS);
        let mut room = KEYS;
        let mut tile = None;
        while room > 0 && self.find() {
            let segment = self.segment - 1;
            let mut len = self.rest.len();
            if self.positions.is_some() {
                let position = self.kv[segment].start + self.rest.start;
                if *tile.get_or_insert(position / KEYS) != position / KEYS {
                    break;
                }
                let len = len.min(KEYS - position % KEYS).min(room);
                pieces.push(Piece { segment, row: self.rest.start, len });
                self.rest.start += len;
                room -= len;
                continue;
            }
            if len > room {
                // A block by channels is widened whole even where few of its tokens are used.
                let block = block(&self.kv[segment]);
                let end = (self.rest.start + room) / block * block;
                len = end.saturating_sub(self.rest.start);
                if len == 0 {
                    break;
                }
            }
            pieces.push(Piece { segment, row: self.rest.start, len });
            self.rest.start += len;
            room -= len;
        }
        !pieces.is_empty()
    }

    /// Goes on to a segment that has rows left.
    fn find(&mut self) -> bool {
        while self.rest.is_empty() {
            let Some(segment) = self.kv.get(self.segment) else { return false };
            let rows = visible(segment, self.window, self.first, self.last);
            self.rest = match &self.positions {
                None => clip(&rows, self.seen, &self.wanted),
                Some(positions) => aligned(segment, rows.clone(), positions),
            };
            self.seen += rows.len();
            self.segment += 1;
        }
        true
    }
}

/// Rows that are best taken together: those of a block, where keys or values lie by channels.
fn block(segment: &KvSegment<'_>) -> usize {
    let sides = [segment.keys, segment.values].map(|rows| (rows.layout, rows.dtype));
    let channels = sides.iter().filter(|side| side.0 == KvLayout::Channels);
    channels.map(|side| side.1.layout().elems).max().unwrap_or(1)
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

/// The rows of a segment at some positions, from the beginning of the first tile that has one of `rows` on.
fn aligned(segment: &KvSegment<'_>, rows: Range<usize>, positions: &Range<usize>) -> Range<usize> {
    let row = |position: usize| position.saturating_sub(segment.start).min(segment.len);
    let first = row((segment.start + rows.start) / KEYS * KEYS).max(row(positions.start));
    if rows.is_empty() { 0..0 } else { first..rows.end.min(row(positions.end)).max(first) }
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
    use super::*;
    use crate::attention::KvRows;
    use ruvllm_abi::DType;

    fn segment(start: usize, len: usize) -> KvSegment<'static> {
        KvSegment {
            start,
            len,
            keys: KvRows::new(DType::Q4_0, KvLayout::Tokens, &[]),
            values: KvRows::new(DType::F32, KvLayout::Tokens, &[]),
        }
    }

    fn by_channels(start: usize, len: usize) -> KvSegment<'static> {
        let keys = KvRows::new(DType::Q4_0, KvLayout::Channels, &[]);
        KvSegment { keys, ..segment(start, len) }
    }

    fn tiles(mut plan: Plan<'_>) -> Vec<Vec<Piece>> {
        let mut pieces = Vec::new();
        std::iter::from_fn(|| plan.next(&mut pieces).then(|| pieces.clone())).collect()
    }

    fn positions(tiles: &[Vec<Piece>], kv: &[KvSegment<'_>]) -> Vec<usize> {
        for pieces in tiles {
            assert!((1..=KEYS).contains(&pieces.iter().map(|piece| piece.len).sum()));
        }
        let position = |piece: &Piece| {
            let start = kv[piece.segment].start + piece.row;
            start..start + piece.len
        };
        tiles.iter().flatten().flat_map(position).collect()
    }

    #[test]
    fn shares_partition_what_the_queries_see() {
        let plain = [segment(0, 100), segment(100, 7), segment(107, 16), segment(123, 200)];
        let mixed =
            [segment(0, 100), by_channels(100, 70), by_channels(170, 32), segment(202, 121)];
        for kv in [plain, mixed] {
            for (first, last) in [(0usize, 0), (5, 9), (99, 130), (322, 322)] {
                for window in [None, Some(1), Some(40), Some(150), Some(1000)] {
                    let low = window.map_or(0, |w: usize| (first + 1).saturating_sub(w));
                    let want: Vec<usize> = (low..=last).collect();
                    let plan = |share| tiles(Plan::new(&kv, window, first, last, share));
                    for of in 1..5 {
                        let (mut run, mut turns) = (Vec::new(), Vec::new());
                        let total = count(&kv, window, first, last);
                        for index in 0..of {
                            let Range { start, end } = crate::pool::split(total, of, index);
                            run.extend(positions(&plan(Share::Run { start, end }), &kv));
                            turns.extend(positions(&plan(Share::Turns { index, of }), &kv));
                        }
                        turns.sort_unstable();
                        assert_eq!(run, want);
                        assert_eq!(turns, want);
                    }
                    assert_eq!(positions(&plan(Share::All), &kv), want);
                }
            }
        }
    }

    #[test]
    fn tiles_are_full_where_rows_stand_alone() {
        let kv = [segment(0, 100), segment(100, 7), segment(107, 16), segment(123, 200)];
        let tiles = tiles(Plan::new(&kv, Some(300), 322, 322, Share::All));
        let lens: Vec<usize> = tiles.iter().map(|tile| tile.iter().map(|p| p.len).sum()).collect();
        assert_eq!(lens, [64, 64, 64, 64, 44]);
    }

    #[test]
    fn blocks_by_channels_are_cut_at_the_ends_only() {
        let pages: Vec<_> = (0..8).map(|i| by_channels(i * 32, 32)).collect();
        let one = [by_channels(0, 256)];
        for kv in [&pages[..], &one] {
            let lens = |share| -> Vec<usize> {
                let tiles = tiles(Plan::new(kv, Some(250), 255, 255, share));
                tiles.iter().map(|tile| tile.iter().map(|p| p.len).sum()).collect()
            };
            assert_eq!(lens(Share::All), [58, 64, 64, 64]);
            assert_eq!(lens(Share::Run { start: 27, end: 125 }), [63, 35]);
        }
    }

    #[test]
    fn nothing_visible_is_no_tile() {
        let none = |kv: &[KvSegment<'_>], window, first, last| {
            assert!(tiles(Plan::new(kv, window, first, last, Share::All)).is_empty());
        };
        none(&[segment(10, 5)], None, 3, 4);
        none(&[segment(10, 5)], Some(0), 12, 12);
        none(&[], None, 3, 4);
    }
}
