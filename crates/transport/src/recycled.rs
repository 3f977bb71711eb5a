//! Futures in heap memory that the thread uses again.
//!
//! A stream's future has kilobytes and may live for microseconds. An allocator that finds all blocks of a page free
//! returns the page, and soon gives it back to the kernel, which clears it before the next burst of streams: half of the
//! time that a stream takes which is reset at once. **Limits:** a thread keeps as many blocks as [`Demand`] allows, of one
//! size, that of the first future it drops.

use std::alloc::Layout;
use std::cell::RefCell;
use std::future::Future;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use crate::Demand;

struct Kept {
    /// The size and the alignment of the blocks.
    layout: Layout,
    blocks: Vec<NonNull<u8>>,
    demand: Demand,
}

impl Drop for Kept {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            // SAFETY: a block that is kept was allocated with this layout, and nothing else points to it.
            unsafe { std::alloc::dealloc(block.as_ptr(), self.layout) };
        }
    }
}

thread_local! {
    static KEPT: RefCell<Kept> =
        const { RefCell::new(Kept { layout: Layout::new::<()>(), blocks: Vec::new(), demand: Demand::new() }) };
}

/// Returns a block for a value, one that is kept if there is one of its size.
fn take<T>() -> Box<MaybeUninit<T>> {
    let kept = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        kept.demand.take();
        (kept.layout == Layout::new::<T>()).then(|| kept.blocks.pop()).flatten()
    });
    match kept.ok().flatten() {
        // SAFETY: the block was a box of a type with the same layout, and left the list.
        Some(block) => unsafe { Box::from_raw(block.as_ptr().cast()) },
        None => Box::new_uninit(),
    }
}

/// Keeps a block, or frees it.
fn keep<T>(block: Box<MaybeUninit<T>>) {
    let layout = Layout::new::<T>();
    // A thread that ends keeps nothing.
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        let most = kept.demand.give();
        if layout.size() == 0 || kept.blocks.len() >= most || !kept.blocks.is_empty() && kept.layout != layout {
            return;
        }
        kept.layout = layout;
        kept.blocks.push(NonNull::from(Box::leak(block)).cast());
    });
}

/// A future in a block of the thread that made it.
pub struct Recycled<F>(ManuallyDrop<Pin<Box<F>>>);

impl<F> Recycled<F> {
    /// Returns the future that a function makes, which is made where it will live.
    pub fn new(make: impl FnOnce() -> F) -> Recycled<F> {
        Recycled(ManuallyDrop::new(Box::into_pin(Box::write(take(), make()))))
    }
}

impl<F: Future> Future for Recycled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<F> Drop for Recycled<F> {
    fn drop(&mut self) {
        // SAFETY: the box is taken once, its value is dropped in place and not moved, as its pin promised, and what is
        // kept is memory without a value.
        unsafe {
            let value = Box::into_raw(Pin::into_inner_unchecked(ManuallyDrop::take(&mut self.0)));
            value.drop_in_place();
            keep(Box::from_raw(value.cast::<MaybeUninit<F>>()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::Waker;

    use super::*;

    fn address<F>(future: &Recycled<F>) -> *const F {
        &raw const **future.0
    }

    fn kept() -> usize {
        KEPT.with_borrow(|kept| kept.blocks.len())
    }

    async fn hold<const SIZE: usize>(memory: [u8; SIZE], alive: Rc<()>) -> usize {
        std::future::ready(()).await;
        drop(alive);
        memory.len()
    }

    /// A future that is dropped leaves its block to the next of its size, and drops what it holds once.
    #[test]
    fn a_block_serves_the_next_future_of_its_size() {
        let alive = Rc::new(());
        let first = Recycled::new(|| hold([0; 500], alive.clone()));
        let block = address(&first);
        drop(first);
        assert_eq!((Rc::strong_count(&alive), kept()), (1, 1));
        let other = Recycled::new(|| hold([0; 600], alive.clone()));
        assert_eq!(kept(), 1, "a block of another size is not used");
        let mut next = Recycled::new(|| hold([0; 500], alive.clone()));
        assert_eq!((address(&next), kept()), (block, 0));
        assert_eq!(Pin::new(&mut next).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(500));
        drop((other, next));
        assert_eq!((Rc::strong_count(&alive), kept()), (1, 1));
    }

    #[test]
    fn a_thread_keeps_a_limited_number_of_blocks() {
        let alive = Rc::new(());
        let many: Vec<_> = (0..2 * Demand::MOST).map(|_| Recycled::new(|| hold([0; 500], alive.clone()))).collect();
        drop(many);
        assert_eq!((Rc::strong_count(&alive), kept()), (1, Demand::MOST));
    }
}
