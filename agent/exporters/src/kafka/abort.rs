//! A stream that can be aborted from elsewhere. rskafka moves a cancelled request to a task of its own, which keeps
//! writing for as long as the peer reads. Without an abort its batches would be stored over and over.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Default)]
struct Shared {
    is_aborted: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

pub(super) struct Abortable<S> {
    stream: S,
    shared: Arc<Shared>,
}

/// Aborts a stream.
pub(super) struct AbortHandle(Arc<Shared>);

impl AbortHandle {
    /// Fails all further reads and writes, including pending ones.
    pub fn abort(&self) {
        self.0.is_aborted.store(true, Ordering::SeqCst);
        self.0.reader.wake();
        self.0.writer.wake();
    }
}

impl<S> Abortable<S> {
    pub fn new(stream: S) -> (Self, AbortHandle) {
        let shared = Arc::<Shared>::default();
        let abort = AbortHandle(Arc::clone(&shared));
        (Self { stream, shared }, abort)
    }
}

impl Shared {
    /// Fails if the stream was aborted. Otherwise registers the task to be woken by an abort.
    fn check(&self, waker: &AtomicWaker, context: &Context<'_>) -> io::Result<()> {
        // Register first, so that an abort in between is not missed.
        waker.register(context.waker());
        if self.is_aborted.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Abortable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.shared.check(&self.shared.reader, context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Abortable<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.shared.check(&self.shared.writer, context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.check(&self.shared.writer, context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
