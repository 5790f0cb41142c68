//! Pages of one reservation, and slots of equal size within a page.
//!
//! The reservation is address space that the system backs with memory when it is first written. It
//! is cut into pages of [`PAGE`] bytes as they are needed. A page serves slots of one size; when
//! all its slots are back it is whole again and may serve another size.
//!
//! Invariant: every byte of the reservation belongs to exactly one buffer, either here or with
//! whoever took it. [`BytesMut`] splits and joins neighbours without copying, so none of this
//! needs unsafe code: a slot is owned memory that nobody else can reach.

use bytes::BytesMut;

/// Bytes of a page: a huge page of most systems.
pub const PAGE: usize = 2 << 20;

/// Slots start on a cache line.
const ALIGN: usize = 64;

/// The size of slots that hold `bytes`.
pub(crate) const fn slot_size(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

/// A reservation and what is free of it.
pub(crate) struct Pages {
    /// Address of the first page.
    base: usize,
    /// What no page was cut from yet.
    unused: BytesMut,
    /// Whole pages that came back.
    free: Vec<BytesMut>,
    pages: Vec<Page>,
    classes: Vec<Class>,
    /// Pages that serve slots.
    serving: usize,
    /// Emptied lists of slots.
    lists: Vec<Vec<BytesMut>>,
}

#[derive(Default)]
struct Page {
    class: usize,
    /// Free slots.
    slots: Vec<BytesMut>,
    /// What is left of the page behind the last slot.
    tail: BytesMut,
}

/// Slots of one size.
struct Class {
    size: usize,
    /// Free slots in all its pages.
    free: usize,
    /// Pages with free slots.
    partial: Vec<usize>,
}

impl Class {
    fn per_page(&self) -> usize {
        PAGE / self.size
    }
}

impl Pages {
    /// Reserves `pages` pages.
    pub(crate) fn new(pages: usize) -> Pages {
        let mut unused = BytesMut::zeroed((pages + 1) * PAGE);
        let misaligned = unused.as_ptr().addr().next_multiple_of(PAGE) - unused.as_ptr().addr();
        let _ = unused.split_to(misaligned);
        unused.truncate(pages * PAGE);
        Pages {
            base: unused.as_ptr().addr(),
            unused,
            free: Vec::new(),
            pages: Vec::new(),
            classes: Vec::new(),
            serving: 0,
            lists: Vec::new(),
        }
    }

    /// Pages that serve slots.
    pub(crate) fn serving(&self) -> usize {
        self.serving
    }

    /// Bytes of free slots in pages that serve slots, and of what is left behind their last slots.
    pub(crate) fn lost(&self) -> usize {
        let live: usize = self.classes.iter().map(|class| class.free * class.size).sum();
        let tails: usize = self.pages.iter().map(|page| page.tail.len()).sum();
        live + tails
    }

    /// How many more pages `count` slots of `size` bytes need.
    pub(crate) fn pages_for(&self, size: usize, count: usize) -> usize {
        let free = self.classes.iter().find(|class| class.size == size).map_or(0, |c| c.free);
        count.saturating_sub(free).div_ceil(PAGE / size)
    }

    /// Takes `count` slots of `size` bytes, a multiple of 64 that a page holds, into `out`; false,
    /// with nothing taken, where the reservation has no page left for them.
    pub(crate) fn take(&mut self, size: usize, count: usize, out: &mut Vec<BytesMut>) -> bool {
        let class = self.class(size);
        for _ in 0..self.pages_for(size, count) {
            if !self.add_page(class) {
                return false;
            }
        }
        for _ in 0..count {
            out.extend(self.take_one(class));
        }
        true
    }

    /// Makes ready what taking `count` slots of `size` bytes will need of the heap.
    pub(crate) fn stock(&mut self, size: usize, count: usize) {
        let (class, pages) = (self.class(size), self.pages_for(size, count));
        self.classes[class].partial.reserve(pages);
        self.pages.reserve(pages);
        self.free.reserve(self.serving + pages);
        while self.lists.len() < pages {
            self.lists.push(Vec::with_capacity(PAGE / size));
        }
    }

    /// Gives slots back; they must be of this reservation.
    pub(crate) fn give(&mut self, slots: &mut Vec<BytesMut>) {
        for slot in slots.drain(..) {
            let index = self.page_of(&slot);
            let Some(page) = self.pages.get_mut(index) else { continue };
            let class = &mut self.classes[page.class];
            page.slots.push(slot);
            class.free += 1;
            if page.slots.len() == 1 {
                class.partial.push(index);
            }
            if page.slots.len() == class.per_page() {
                self.make_whole(index);
            }
        }
    }

    /// The index of the page that a slot lies in.
    pub(crate) fn page_of(&self, slot: &[u8]) -> usize {
        (slot.as_ptr().addr() - self.base) / PAGE
    }

    /// Marks, by index, the emptiest pages of each size: as many as could be whole if all slots in use
    /// lay in the others. Gives whether there are any.
    pub(crate) fn mark_sparse(&self, marked: &mut Vec<bool>) -> bool {
        marked.clear();
        marked.resize(self.pages.len(), false);
        let mut any = false;
        for class in &self.classes {
            let mut partial = class.partial.clone();
            partial.sort_by_key(|&page| std::cmp::Reverse(self.pages[page].slots.len()));
            for &page in partial.iter().take(class.free / class.per_page()) {
                marked[page] = true;
                any = true;
            }
        }
        any
    }

    fn class(&mut self, size: usize) -> usize {
        if let Some(class) = self.classes.iter().position(|class| class.size == size) {
            return class;
        }
        self.classes.push(Class { size, free: 0, partial: Vec::new() });
        self.classes.len() - 1
    }

    fn add_page(&mut self, class: usize) -> bool {
        let mut whole = match self.free.pop() {
            Some(whole) => whole,
            None if self.unused.len() >= PAGE => self.unused.split_to(PAGE),
            None => return false,
        };
        let index = self.page_of(&whole);
        if self.pages.len() <= index {
            self.pages.resize_with(index + 1, Page::default);
        }
        let page = &mut self.pages[index];
        let Class { size, free, partial } = &mut self.classes[class];
        page.class = class;
        page.slots = self.lists.pop().unwrap_or_default();
        page.slots.reserve(PAGE / *size);
        while whole.len() >= *size {
            page.slots.push(whole.split_to(*size));
        }
        // The slots that lie lowest are taken first.
        page.slots.reverse();
        page.tail = whole;
        *free += page.slots.len();
        partial.push(index);
        self.serving += 1;
        true
    }

    /// A slot of the fullest page, so that others may become whole.
    fn take_one(&mut self, class: usize) -> Option<BytesMut> {
        let Class { free, partial, .. } = &mut self.classes[class];
        let (at, &index) =
            partial.iter().enumerate().min_by_key(|&(_, &page)| self.pages[page].slots.len())?;
        let page = &mut self.pages[index];
        let slot = page.slots.pop()?;
        *free -= 1;
        if page.slots.is_empty() {
            partial.swap_remove(at);
        }
        Some(slot)
    }

    fn make_whole(&mut self, index: usize) {
        let page = &mut self.pages[index];
        let class = &mut self.classes[page.class];
        class.free -= page.slots.len();
        class.partial.retain(|&other| other != index);
        page.slots.sort_unstable_by_key(|slot| slot.as_ptr().addr());
        let mut list = std::mem::take(&mut page.slots);
        let mut whole = BytesMut::new();
        list.drain(..).for_each(|part| whole.unsplit(part));
        whole.unsplit(std::mem::take(&mut page.tail));
        self.free.push(whole);
        self.lists.push(list);
        self.serving -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_whose_slots_are_back_serves_another_size() {
        let mut pages = Pages::new(1);
        let (mut large, mut small) = (Vec::new(), Vec::new());
        assert!(pages.take(PAGE / 4, 4, &mut large));
        assert!(!pages.take(4096, 1, &mut small));
        let addresses: Vec<_> = large.iter().map(|slot| slot.as_ptr().addr()).collect();
        assert!(addresses.iter().all(|address| address % ALIGN == 0));
        pages.give(&mut large);
        assert_eq!(pages.serving(), 0);
        assert!(pages.take(4096, 512, &mut small));
        assert_eq!((pages.serving(), pages.lost()), (1, 0));
        // Joined and cut again, not copied: all within the same page.
        assert!(small.iter().all(|slot| pages.page_of(slot) == 0));
    }

    #[test]
    fn slots_never_overlap() {
        let mut pages = Pages::new(3);
        let mut slots = Vec::new();
        assert!(pages.take(192 * 1024, 20, &mut slots));
        for (i, slot) in slots.iter_mut().enumerate() {
            slot.fill(i as u8);
        }
        for (i, slot) in slots.iter().enumerate() {
            assert!(slot.iter().all(|&byte| byte == i as u8));
        }
        assert_eq!(pages.serving(), 2);
        // 10 slots a page leave 128 KiB of it.
        assert_eq!(pages.lost(), 2 * 128 * 1024);
    }

    #[test]
    fn the_fullest_page_serves_first() {
        let mut pages = Pages::new(2);
        let mut slots = Vec::new();
        assert!(pages.take(PAGE / 4, 8, &mut slots));
        let (first, second): (Vec<_>, Vec<_>) =
            slots.into_iter().partition(|slot| pages.page_of(slot) == 0);
        let mut back: Vec<_> = first.into_iter().take(3).collect();
        pages.give(&mut back);
        back.extend(second.into_iter().take(1));
        pages.give(&mut back);
        assert!(pages.take(PAGE / 4, 1, &mut back));
        assert_eq!(pages.page_of(&back[0]), 1);
    }
}
