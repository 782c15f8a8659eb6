//! Waits until one of many connections is readable, or until a deadline.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

use anyhow::{Context as _, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, epoll, poll},
    io::Errno,
};

/// An epoll instance. Closing a socket removes it.
pub struct Ready {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Ready {
    pub fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).context("make an epoll instance")?,
            events: Vec::with_capacity(256),
        })
    }

    pub fn add(&self, socket: impl AsFd, token: u64) -> Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN).context("watch a socket")
    }

    /// Replaces `tokens` with those of the readable connections, or with none if the deadline came first.
    pub fn wait(&mut self, until: Option<Instant>, tokens: &mut Vec<u64>) -> Result<()> {
        tokens.clear();
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            })
        });
        // ppoll has nanosecond resolution; before Linux 5.11, epoll can only wait in milliseconds.
        let mut epoll_ready = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut epoll_ready, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error).context("wait for sockets"),
        }
        self.events.clear();
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let room = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(&self.epoll, room, Some(&at_once)).context("ask which sockets are ready")?;
        tokens.extend(self.events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}
