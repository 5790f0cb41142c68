//! The 40 bytes that a call passes to a kernel, and the 56 of a call for gradients.

/// A byte range of the kernel's linear memory. An absent region is `{0, 0}`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Byte offset from the start of linear memory.
    pub offset: u32,
    /// Length in bytes.
    pub size: u32,
}

impl Region {
    /// Builds a region from its offset and size in bytes.
    pub const fn new(offset: u32, size: u32) -> Self {
        Self { offset, size }
    }

    /// The first byte after the region, or `None` where that does not fit a 32-bit address.
    pub const fn end(self) -> Option<u32> {
        self.offset.checked_add(self.size)
    }
}

/// What an entry point receives: where its inputs, output, scratch and params lie.
///
/// Ten little-endian `u32`, in this order: input A, input B, output, scratch, params, each as
/// offset then size in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelDescriptor {
    /// The first input, in the order of the manifest.
    pub input_a: Region,
    /// The second input, or `{0, 0}`.
    pub input_b: Region,
    /// The output; never overlaps an input.
    pub output: Region,
    /// Working memory of at least [`crate::SCRATCH_BYTES`] bytes.
    pub scratch: Region,
    /// The params block: bound shape symbols in order of first appearance, then the parameters.
    pub params: Region,
}

impl KernelDescriptor {
    /// Size of the descriptor in bytes.
    pub const SIZE: usize = 40;

    /// The descriptor as the ten words a kernel reads.
    #[inline]
    pub const fn to_words(self) -> [u32; 10] {
        [
            self.input_a.offset,
            self.input_a.size,
            self.input_b.offset,
            self.input_b.size,
            self.output.offset,
            self.output.size,
            self.scratch.offset,
            self.scratch.size,
            self.params.offset,
            self.params.size,
        ]
    }

    /// Reads a descriptor from its ten words.
    pub const fn from_words(w: [u32; 10]) -> Self {
        Self {
            input_a: Region::new(w[0], w[1]),
            input_b: Region::new(w[2], w[3]),
            output: Region::new(w[4], w[5]),
            scratch: Region::new(w[6], w[7]),
            params: Region::new(w[8], w[9]),
        }
    }

    /// The descriptor as the bytes that the host writes into linear memory.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(self.to_words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// What `kernel_backward` receives. Its first five regions are those of [`KernelDescriptor`], but for the
/// output, in whose place the gradient of the output is handed in.
///
/// Fourteen little-endian `u32`: input A, input B, gradient of the output, scratch, params, gradient of A,
/// gradient of B, each as offset then size in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardDescriptor {
    /// The first input of the forward call.
    pub input_a: Region,
    /// The second input, or `{0, 0}`.
    pub input_b: Region,
    /// The gradient of the output, which the kernel reads.
    pub grad_output: Region,
    /// Working memory of at least [`crate::SCRATCH_BYTES`] bytes.
    pub scratch: Region,
    /// The params block of the forward call.
    pub params: Region,
    /// Where the gradient of the first input goes; overlaps nothing.
    pub grad_a: Region,
    /// Where the gradient of the second input goes, or `{0, 0}` where the operation has none; overlaps nothing.
    pub grad_b: Region,
}

impl BackwardDescriptor {
    /// Size of the descriptor in bytes.
    pub const SIZE: usize = 56;

    /// The descriptor as the fourteen words a kernel reads.
    pub const fn to_words(self) -> [u32; 14] {
        let Self { input_a, input_b, grad_output, scratch, params, grad_a, grad_b } = self;
        [
            input_a.offset,
            input_a.size,
            input_b.offset,
            input_b.size,
            grad_output.offset,
            grad_output.size,
            scratch.offset,
            scratch.size,
            params.offset,
            params.size,
            grad_a.offset,
            grad_a.size,
            grad_b.offset,
            grad_b.size,
        ]
    }

    /// Reads a descriptor from its fourteen words.
    pub const fn from_words(w: [u32; 14]) -> Self {
        Self {
            input_a: Region::new(w[0], w[1]),
            input_b: Region::new(w[2], w[3]),
            grad_output: Region::new(w[4], w[5]),
            scratch: Region::new(w[6], w[7]),
            params: Region::new(w[8], w[9]),
            grad_a: Region::new(w[10], w[11]),
            grad_b: Region::new(w[12], w[13]),
        }
    }

    /// The descriptor as the bytes that the host writes into linear memory.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(self.to_words()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// What `kernel_info` writes: sixteen bytes about the module itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelInfo {
    /// The ABI version that the kernel was compiled against.
    pub abi_version: u32,
    /// The kernel's own revision; free for its author to use.
    pub revision: u32,
    /// Reserved; zero.
    pub flags: u32,
    /// Reserved; zero.
    pub reserved: u32,
}

impl KernelInfo {
    /// Size of the structure in bytes.
    pub const SIZE: usize = 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_is_forty_bytes_of_little_endian_words() {
        let words = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0a0b_0c0d];
        let desc = KernelDescriptor::from_words(words);
        assert_eq!(size_of::<KernelDescriptor>(), KernelDescriptor::SIZE);
        assert_eq!(desc.to_words(), words);
        assert_eq!(desc.to_bytes()[36..], [0x0d, 0x0c, 0x0b, 0x0a]);
    }

    #[test]
    fn a_call_for_gradients_begins_as_a_call_does() {
        let words: [u32; 14] = core::array::from_fn(|i| i as u32);
        let backward = BackwardDescriptor::from_words(words);
        assert_eq!(size_of::<BackwardDescriptor>(), BackwardDescriptor::SIZE);
        assert_eq!(backward.to_words(), words);
        assert_eq!(backward.to_bytes()[52..], [13, 0, 0, 0]);
        let forward = KernelDescriptor::from_words(core::array::from_fn(|i| words[i]));
        assert_eq!((forward.output, forward.params), (backward.grad_output, backward.params));
    }

    #[test]
    fn a_region_that_leaves_the_address_space_has_no_end() {
        assert_eq!(Region::new(u32::MAX, 1).end(), None);
        assert_eq!(Region::new(64, 16).end(), Some(80));
    }
}
