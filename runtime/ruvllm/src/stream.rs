//! Texts that come while the caller does something else.
//!
//! The scheduler's thread, which must not wait, puts text down in a [`Channel`]; whoever has the
//! [`TextStream`] takes it from there, by waiting or by being woken. So it needs no asynchronous runtime, and
//! goes with any.

use crate::{Completion, Error};
use ruvllm_engine::scheduler::{Request, RequestHandle, Scheduler, Update};
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A text that is being generated, in pieces as they come; made by [`Runtime::stream`].
///
/// A piece has whole characters, and never a part of a stop string. Dropping the stream ends the generation
/// within a step. It is an [`Iterator`], which waits for each piece:
///
/// ```
/// use ruvllm::{GenerateOptions, Prompt, Runtime};
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let runtime = Runtime::builder().build()?;
/// let options = GenerateOptions { max_tokens: 8, ..GenerateOptions::default() };
/// let mut stream = runtime.stream(Prompt::Raw("Once upon a time"), &options)?;
/// for piece in &mut stream {
///     print!("{}", piece?);
/// }
/// let done = stream.completion().expect("it has come to its end");
/// assert_eq!(done.usage().completion_tokens, 8);
/// # Ok(())
/// # }
/// ```
///
/// Asynchronous code takes pieces by [`TextStream::next_piece`]. With the feature `async` the stream is a
/// `futures_core::Stream`, too.
///
/// [`Runtime::stream`]: crate::Runtime::stream
#[must_use = "dropping the stream ends the generation"]
pub struct TextStream {
    channel: Arc<Channel>,
    completion: Option<Completion>,
    /// Whether there is nothing more to come.
    over: bool,
    handle: RequestHandle,
    /// Goes on as long as somebody reads.
    _scheduler: Scheduler,
}

#[derive(Default)]
struct Channel {
    state: Mutex<ChannelState>,
    changed: Condvar,
}

#[derive(Default)]
struct ChannelState {
    /// Text that nobody has taken yet.
    ready: String,
    end: Option<Result<Completion, Error>>,
    /// Whether nothing more will be put down.
    closed: bool,
    /// Who is to be woken.
    waker: Option<Waker>,
}

impl Channel {
    fn state(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut ChannelState)) {
        let mut state = self.state();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        // Not under the lock, which what it runs may want.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The end where text is put down; dropped, it closes the channel.
struct Writer {
    channel: Arc<Channel>,
    text: String,
    token_ids: Vec<u32>,
    started: Instant,
    prefill: Duration,
    load: Duration,
}

impl Writer {
    fn take(&mut self, update: Update) {
        match update {
            Update::Started(_) => self.started = Instant::now(),
            Update::Prefill { .. } => self.prefill = self.started.elapsed(),
            Update::Token(token) => {
                self.token_ids.push(token.token);
                self.put(&token.text);
            }
            Update::Done(finished) => {
                self.put(&finished.text);
                let completion = Completion {
                    text: std::mem::take(&mut self.text),
                    token_ids: std::mem::take(&mut self.token_ids),
                    finish: finished.timed(self.load, self.prefill),
                };
                self.channel.change(|state| state.end = Some(Ok(completion)));
            }
            Update::Failed(error) => {
                self.channel.change(|state| state.end = Some(Err(error.into())));
            }
            Update::Prompt(_) | Update::Embedding(_) => {}
        }
    }

    fn put(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.text.push_str(piece);
            self.channel.change(|state| state.ready.push_str(piece));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.channel.change(|state| state.closed = true);
    }
}

impl TextStream {
    /// Has the scheduler compute the request.
    pub(crate) fn start(scheduler: Scheduler, request: Request) -> Result<Self, Error> {
        let channel = Arc::new(Channel::default());
        let mut writer = Writer {
            channel: channel.clone(),
            text: String::new(),
            token_ids: Vec::new(),
            started: Instant::now(),
            prefill: Duration::ZERO,
            load: scheduler.engine().model().load_time(),
        };
        let sink = Box::new(move |update| {
            writer.take(update);
            ControlFlow::Continue(())
        });
        let handle = scheduler.submit(request, sink)?;
        Ok(Self { channel, completion: None, over: false, handle, _scheduler: scheduler })
    }

    /// The next piece, or `None` at the end, as soon as there is either; for asynchronous code.
    ///
    /// ```
    /// # use ruvllm::{GenerateOptions, Prompt, Runtime};
    /// async fn tell(runtime: &Runtime) -> Result<String, ruvllm::Error> {
    ///     let options = GenerateOptions::default();
    ///     let mut stream = runtime.stream(Prompt::Raw("Once upon a time"), &options)?;
    ///     let mut tale = String::new();
    ///     while let Some(piece) = stream.next_piece().await {
    ///         tale += &piece?;
    ///     }
    ///     Ok(tale)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the engine; the text ends there.
    pub async fn next_piece(&mut self) -> Option<Result<String, Error>> {
        std::future::poll_fn(|context| self.poll_piece(context)).await
    }

    /// As [`TextStream::next_piece`], for who polls: where nothing has come, the context's waker is called
    /// when something does.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String, Error>>> {
        let channel = Arc::clone(&self.channel);
        let mut state = channel.state();
        match self.take(&mut state) {
            Some(item) => Poll::Ready(item),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// What was generated, once the stream has given its end.
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }

    /// Ends the generation within a step; what there is until then, and the end, still come.
    pub fn cancel(&self) {
        self.handle.cancel();
    }

    /// Waits for the end, and gives all of it, what was taken before included.
    ///
    /// # Errors
    ///
    /// Those of the engine.
    pub fn wait(mut self) -> Result<Completion, Error> {
        self.by_ref().try_for_each(|piece| piece.map(drop))?;
        // Nothing but an error comes in place of the end, and after one there is no more.
        self.completion.ok_or(Error::SchedulerStopped)
    }

    /// What is there, if something is.
    fn take(&mut self, state: &mut ChannelState) -> Option<Option<Result<String, Error>>> {
        if self.over {
            return Some(None);
        }
        if !state.ready.is_empty() {
            return Some(Some(Ok(std::mem::take(&mut state.ready))));
        }
        let end = match state.end.take() {
            None if state.closed => Err(Error::SchedulerStopped),
            end => end?,
        };
        self.over = true;
        Some(match end {
            Ok(completion) => {
                self.completion = Some(completion);
                None
            }
            Err(error) => Some(Err(error)),
        })
    }
}

impl Iterator for TextStream {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let channel = Arc::clone(&self.channel);
        let mut state = channel.state();
        loop {
            if let Some(item) = self.take(&mut state) {
                return item;
            }
            state = channel.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(feature = "async")]
impl futures_core::Stream for TextStream {
    type Item = Result<String, Error>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_piece(context)
    }
}
