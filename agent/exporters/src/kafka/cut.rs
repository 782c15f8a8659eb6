//! A stream that can be ended from elsewhere. rskafka hands a request that nobody waits for any more to a task of its own, which
//! goes on writing it for as long as the peer reads: the batches in it would come again and again.

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
    is_cut: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

pub(super) struct Cuttable<S> {
    stream: S,
    shared: Arc<Shared>,
}

/// Ends a stream.
pub(super) struct Cut(Arc<Shared>);

impl Cut {
    /// From now on, whoever reads or writes gets an error, also who waits.
    pub fn now(&self) {
        self.0.is_cut.store(true, Ordering::SeqCst);
        self.0.reader.wake();
        self.0.writer.wake();
    }
}

impl<S> Cuttable<S> {
    pub fn new(stream: S) -> (Self, Cut) {
        let shared = Arc::<Shared>::default();
        let cut = Cut(Arc::clone(&shared));
        (Self { stream, shared }, cut)
    }
}

impl Shared {
    /// Fails if it is cut. Otherwise the task is woken when it is.
    fn check(&self, waker: &AtomicWaker, context: &Context<'_>) -> io::Result<()> {
        // In this order, so that a cut in between is seen.
        waker.register(context.waker());
        if self.is_cut.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cuttable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.shared.check(&self.shared.reader, context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cuttable<S> {
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
