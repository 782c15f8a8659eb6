//! The terminal: set up for the screen, and restored however the program ends, except by SIGKILL.

use std::{io, thread, time::Duration};

use anyhow::{Context as _, Result};
use crossterm::{
    event::{
        self, DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture,
        Event,
    },
    execute,
};
use ratatui::DefaultTerminal;
use tokio::sync::mpsc;
use view::top::{draw::draw, screen::Screen};

/// How long the key-reading thread takes to notice that it is not needed any more.
const LOOK: Duration = Duration::from_millis(100);
/// Events queued while the screen is drawn.
const EVENTS: usize = 256;

pub struct Terminal {
    terminal: DefaultTerminal,
    events: mpsc::Receiver<io::Result<Event>>,
}

impl Terminal {
    pub fn open() -> Result<Self> {
        // Restores the terminal after a panic as well.
        let terminal = ratatui::try_init().inspect_err(|_| {
            let _ = ratatui::try_restore();
        });
        let terminal = terminal.context("take the terminal")?;
        let (sender, events) = mpsc::channel(EVENTS);
        let opened = Self { terminal, events };
        execute!(io::stdout(), EnableMouseCapture, EnableBracketedPaste)
            .context("ask the terminal for the mouse")?;
        thread::Builder::new()
            .name("keys".to_owned())
            .spawn(move || read(&sender))
            .context("start the thread that reads keys")?;
        Ok(opened)
    }

    pub fn draw(&mut self, screen: &mut Screen) -> Result<()> {
        let drawn = self.terminal.draw(|frame| draw(frame, screen));
        drawn.map(|_| ()).context("write to the terminal")
    }

    /// The next key or other terminal event. Cancel safe.
    pub async fn event(&mut self) -> Result<Event> {
        let event = self.events.recv().await;
        let event = event.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
        event.context("read from the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = execute!(io::stdout(), DisableMouseCapture, DisableBracketedPaste);
        let _ = ratatui::try_restore();
    }
}

/// Reads events until the receiver or the terminal is gone.
fn read(events: &mpsc::Sender<io::Result<Event>>) {
    while !events.is_closed() {
        let read = match event::poll(LOOK) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let is_last = read.is_err();
        if events.blocking_send(read).is_err() || is_last {
            return;
        }
    }
}
