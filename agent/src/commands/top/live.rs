//! At a terminal, until the person quits.

use std::{pin::pin, time::Duration};

use anyhow::{Context as _, Result};
use sys::local_time::Zone;
use tokio::{sync::mpsc, task::JoinSet, time::sleep};
use view::{
    client::{ClientError, Event, Observer, Target},
    top::{
        picture::Picture,
        screen::{Filter, Screen, Wish},
    },
};

use super::{Args, ask_for_scans, request, take, terminal::Terminal};
use crate::commands::patiently;

/// Keys wait until a scan is complete, so that nobody sees or freezes partial sums. If the stream pauses this long in
/// the middle of a scan, keys are handled anyway.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Batches queued while the screen is drawn.
const BATCHES: usize = 4;

/// A stream that reconnects in the background, independent of keys. Dropping this ends it.
struct Watching {
    events: mpsc::Receiver<Result<Event, ClientError>>,
    _task: JoinSet<()>,
}

impl Watching {
    fn of(mut observer: Observer) -> Self {
        let (sender, events) = mpsc::channel(BATCHES);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let event = observer.next().await;
                let is_last = event.is_err();
                if sender.send(event).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self {
            events,
            _task: task,
        }
    }

    async fn next(&mut self) -> Result<Event> {
        let event = self.events.recv().await;
        Ok(event.context("the stream is over")??)
    }
}

pub async fn live(args: &Args, target: &Target) -> Result<()> {
    let has_color = std::env::var_os("NO_COLOR").is_none();
    let picture = Picture::of(args.every);
    let filter = Filter::of(&args.filter);
    let mut screen = Screen::new(picture, (args.view, args.sort), filter, has_color);
    screen.pace = format!("every {}", humantime::format_duration(args.every));
    screen.zone = Zone::utc_if(args.utc);
    // Report errors of the first connection before the terminal changes.
    let observer = Observer::connect_with(target.clone(), request(screen.filter.rules.clone()));
    let mut watching = Watching::of(patiently(target, observer).await?);
    let mut terminal = Terminal::open()?;
    let mut scans = pin!(ask_for_scans(target, args.every));
    let mut is_asking = true;
    let mut is_new = true;
    loop {
        if is_new {
            terminal.draw(&mut screen)?;
        }
        let is_partial = screen.picture_mut().is_partial();
        is_new = tokio::select! {
            event = watching.next() => note(&mut screen, event?)?,
            () = sleep(LONGEST_PAUSE), if is_partial => {
                screen.picture_mut().take_as_whole();
                true
            }
            why = &mut scans, if is_asking => {
                (is_asking, screen.pace) = (false, why);
                !is_partial
            }
            event = terminal.event(), if !is_partial => {
                let event = event?;
                match screen.event(&event) {
                    Wish::Nothing => {}
                    Wish::Quit => return Ok(()),
                    Wish::Observe(filter) => match begin_with(filter, target, &mut screen, &mut terminal).await? {
                        Begun::Anew(observer) => watching = Watching::of(*observer),
                        Begun::No => {}
                        Begun::Quit => return Ok(()),
                    },
                }
                !Screen::ignores(&event)
            }
        };
    }
}

enum Begun {
    Anew(Box<Observer>),
    No,
    Quit,
}

/// Requests the flows that this filter lets through. The existing stream goes on until the agent has accepted them.
async fn begin_with(
    filter: Filter,
    target: &Target,
    screen: &mut Screen,
    terminal: &mut Terminal,
) -> Result<Begun> {
    let trouble = std::mem::replace(&mut screen.trouble, "waiting for the agent".to_owned());
    terminal.draw(screen)?;
    let mut connecting = pin!(Observer::connect_with(
        target.clone(),
        request(filter.rules.clone())
    ));
    let connected = loop {
        tokio::select! {
            connected = &mut connecting => break connected,
            event = terminal.event() => if Screen::quits(&event?) {
                return Ok(Begun::Quit);
            },
        }
    };
    match connected {
        Ok(observer) => {
            screen.begin_with(filter);
            screen.trouble.clear();
            Ok(Begun::Anew(Box::new(observer)))
        }
        Err(error) => {
            screen.refuse(filter, &error.to_string());
            screen.trouble = trouble;
            Ok(Begun::No)
        }
    }
}

/// Returns whether the screen has changed.
fn note(screen: &mut Screen, event: Event) -> Result<bool> {
    match event {
        Event::Batch(batch) => return take(screen.picture_mut(), &batch),
        Event::Disconnected { reason } => {
            screen.picture_mut().take_as_whole();
            screen.trouble = format!("{reason}; waiting for the agent to come back");
        }
        Event::Reconnected {
            restarted,
            missed_scans,
        } => {
            // A stream begins with a snapshot.
            let picture = screen.picture_mut();
            picture.restart();
            picture.missing.missed_scans += missed_scans;
            picture.missing.restarts += u64::from(restarted);
            screen.trouble.clear();
        }
        Event::Gap { batches } => screen.picture_mut().missing.gaps += batches,
    }
    Ok(true)
}
