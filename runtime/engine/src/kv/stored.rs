//! Blocks in memory.

use ruvllm_native::attention::KvSegment;

use super::ahead::JobHandle;
use super::block::{BlockShape, Codecs, Half, Side};

/// A block in memory.
pub(crate) struct Stored {
    keys: Side,
    values: Side,
    /// The job that writes these bytes anew ahead of time. It is given up with them: whoever may write to
    /// a side, or puts another block in this one's place, drops it.
    pub(super) recode_job: Option<JobHandle>,
}

impl Stored {
    pub(super) fn new(keys: Side, values: Side) -> Stored {
        Stored { keys, values, recode_job: None }
    }

    pub(crate) fn side(&self, half: Half) -> &Side {
        match half {
            Half::Keys => &self.keys,
            Half::Values => &self.values,
        }
    }

    pub(crate) fn side_mut(&mut self, half: Half) -> &mut Side {
        self.recode_job = None;
        match half {
            Half::Keys => &mut self.keys,
            Half::Values => &mut self.values,
        }
    }

    /// The codecs of keys and values.
    pub(crate) fn codecs(&self) -> Codecs {
        Codecs { keys: self.keys.codec, values: self.values.codec }
    }
}

/// The first `len` tokens of a layer of a block's keys and values, at positions from `start` on, as attention reads
/// them.
pub(super) fn segment<'a>(
    shape: &BlockShape,
    layer: usize,
    start: usize,
    len: usize,
    [keys, values]: [&'a Side; 2],
) -> KvSegment<'a> {
    KvSegment {
        start,
        len,
        keys: keys.rows(shape, layer, len),
        values: values.rows(shape, layer, len),
    }
}
