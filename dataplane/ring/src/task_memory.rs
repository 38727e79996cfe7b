//! Memory of ended tasks that the next task of the same type uses again.
//!
//! The future of a request takes some kilobytes. The C library keeps few free blocks of one size ready, and none this
//! large, so that each request would search its heap and merge free blocks again when it ends.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::limits::TASKS_KEPT_MAX;

pin_project_lite::pin_project! {
    /// A task whose memory is used again. It is empty while it waits for its next future.
    struct RecycledTask<F> {
        #[pin]
        future: Option<F>,
        // Where its memory goes. `None` while it is there.
        memory: Option<Rc<FreeTasks<F>>>,
    }
}

/// A future in memory that is used again.
pub(crate) trait RecycledFuture: Future<Output = ()> {
    /// Drops the future, and keeps its memory.
    fn recycle(self: Pin<Box<Self>>);
}

impl<F: Future<Output = ()>> Future for RecycledTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project().future.as_pin_mut() {
            Some(future) => future.poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl<F: Future<Output = ()>> RecycledFuture for RecycledTask<F> {
    fn recycle(mut self: Pin<Box<Self>>) {
        let mut this = self.as_mut().project();
        this.future.set(None);
        if let Some(memory) = this.memory.take() {
            memory.put(self);
        }
    }
}

/// The free tasks of one type.
struct FreeTasks<F> {
    free: RefCell<Vec<Pin<Box<RecycledTask<F>>>>>,
}

impl<F> FreeTasks<F> {
    fn put(&self, task: Pin<Box<RecycledTask<F>>>) {
        let mut free = self.free.borrow_mut();
        if free.len() < TASKS_KEPT_MAX {
            free.push(task);
        }
    }
}

/// The free tasks of one ring, by the type of their future: a ring has few types whose memory is used again.
#[derive(Default)]
pub(crate) struct TaskMemory {
    types: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
}

impl TaskMemory {
    /// A task for `future`: in the memory of one that has ended, if there is one.
    pub(crate) fn task<F: Future<Output = ()> + 'static>(&self, future: F) -> Pin<Box<dyn RecycledFuture>> {
        let memory = self.of_type::<F>();
        let free = memory.free.borrow_mut().pop();
        let Some(mut task) = free else {
            return Box::pin(RecycledTask { future: Some(future), memory: Some(memory) });
        };
        let mut this = task.as_mut().project();
        this.future.set(Some(future));
        *this.memory = Some(memory);
        task
    }

    fn of_type<F: 'static>(&self) -> Rc<FreeTasks<F>> {
        let mut types = self.types.borrow_mut();
        let known = types.iter().find(|(id, _)| *id == TypeId::of::<F>());
        if let Some(Ok(memory)) = known.map(|(_, memory)| Rc::clone(memory).downcast()) {
            return memory;
        }
        let memory = Rc::new(FreeTasks::<F> { free: RefCell::default() });
        types.push((TypeId::of::<F>(), Rc::clone(&memory) as Rc<dyn Any>));
        memory
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;
    use std::ptr;
    use std::task::Waker;

    use super::*;

    /// Counts its drops.
    struct DropCount(Rc<Cell<usize>>);

    impl Drop for DropCount {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    fn counted(drops: &Rc<Cell<usize>>) -> impl Future<Output = ()> + 'static {
        let guard = DropCount(Rc::clone(drops));
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    }

    fn address(task: &Pin<Box<dyn RecycledFuture>>) -> *const () {
        ptr::from_ref(&**task).cast()
    }

    #[test]
    fn next_task_of_the_type_gets_the_memory() {
        let (memory, drops) = (TaskMemory::default(), Rc::<Cell<usize>>::default());
        let first = memory.task(counted(&drops));
        let (second, place) = (memory.task(counted(&drops)), address(&first));
        assert_ne!(address(&second), place, "both are in use");
        first.recycle();
        assert_eq!(drops.get(), 1, "its future is dropped at once");
        assert_ne!(address(&memory.task(ready(()))), place, "another type has other memory");
        let mut third = memory.task(counted(&drops));
        assert_eq!(address(&third), place);
        assert!(third.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop((second, third));
        assert_eq!(drops.get(), 3);
    }

    #[test]
    fn few_free_tasks_are_kept() {
        let memory = TaskMemory::default();
        let tasks: Vec<_> = (0..=TASKS_KEPT_MAX).map(|_| memory.task(ready(()))).collect();
        tasks.into_iter().for_each(RecycledFuture::recycle);
        assert_eq!(memory.of_type::<std::future::Ready<()>>().free.borrow().len(), TASKS_KEPT_MAX);
    }
}
