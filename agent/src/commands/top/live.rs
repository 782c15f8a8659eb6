//! At a terminal, until the person quits.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sys::{
    clock::{boot_now_ns, unix_of_boot_ns},
    local_time::Zone,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use view::{
    client::{ClientError, Event, Observer, Reconnected, Target},
    top::{
        fleet::Fleet,
        screen::{Action, Filter, Screen},
    },
};

use super::{Args, ask_for_scans, observe, terminal::Terminal};
use crate::commands::patiently;

/// Keys wait until a scan is complete, so that nobody sees or freezes partial sums. If the stream pauses this long in
/// the middle of a scan, keys are handled anyway.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often the screen is drawn for a collector's hosts, whose scans come at any time.
const REDRAW: Duration = Duration::from_millis(500);
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
    let filter = Filter::of(&args.filter);
    // Report errors of the first connection before the terminal changes.
    let observer = observe(target, filter.rules.clone());
    let (observer, is_collector) = patiently(target, observer).await?;
    let mut watching = Watching::of(observer);
    let fleet = Fleet::new(args.every, is_collector, Instant::now());
    let mut screen = Screen::new(fleet, (args.view, args.sort), filter, has_color);
    screen.pace = format!("every {}", humantime::format_duration(args.every));
    screen.zone = Zone::utc_if(args.utc);
    let mut terminal = Terminal::open()?;
    let mut scans = pin!(ask_for_scans(target, args.every, is_collector));
    let mut is_asking = true;
    let mut is_new = true;
    let mut has_news = false;
    let mut redraw = interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if is_new {
            let start = Instant::now();
            terminal.draw(&mut screen)?;
            has_news = false;
            // Rows of many hosts take a while, in which batches are waiting.
            redraw.reset_after(REDRAW.max(start.elapsed() * 4));
        }
        let is_partial = screen.fleet_mut().is_partial();
        let is_collector = screen.fleet_mut().is_collector();
        // Without a stream, what was there stays.
        let is_connected = screen.trouble.is_empty();
        is_new = tokio::select! {
            event = watching.next() => {
                has_news |= note(&mut screen, event?);
                has_news && !is_collector
            }
            _ = redraw.tick(), if is_collector => {
                let is_other = is_connected && screen.fleet_mut().tick(Instant::now(), unix_of_boot_ns(boot_now_ns()));
                is_other || has_news
            }
            () = sleep(LONGEST_PAUSE), if is_partial => {
                screen.fleet_mut().take_as_whole();
                true
            }
            why = &mut scans, if is_asking => {
                (is_asking, screen.pace) = (false, why);
                !is_partial
            }
            event = terminal.event(), if !is_partial => {
                let event = event?;
                match screen.event(&event) {
                    Action::Nothing => {}
                    Action::Quit => return Ok(()),
                    Action::Observe(filter) => match begin_with(filter, target, &mut screen, &mut terminal).await? {
                        StreamChange::Replaced(observer) => watching = Watching::of(*observer),
                        StreamChange::Kept => {}
                        StreamChange::Quit => return Ok(()),
                    },
                }
                !Screen::ignores(&event)
            }
        };
    }
}

/// What became of the stream when the user chose another filter.
enum StreamChange {
    Replaced(Box<Observer>),
    Kept,
    Quit,
}

/// Requests the flows that this filter lets through. The existing stream goes on until the agent has accepted them.
async fn begin_with(
    filter: Filter,
    target: &Target,
    screen: &mut Screen,
    terminal: &mut Terminal,
) -> Result<StreamChange> {
    let trouble = std::mem::replace(&mut screen.trouble, "waiting for the agent".to_owned());
    terminal.draw(screen)?;
    let mut connecting = pin!(observe(target, filter.rules.clone()));
    let connected = loop {
        tokio::select! {
            connected = &mut connecting => break connected,
            event = terminal.event() => if Screen::quits(&event?) {
                return Ok(StreamChange::Quit);
            },
        }
    };
    match connected {
        Ok((observer, _)) => {
            screen.begin_with(filter);
            screen.trouble.clear();
            Ok(StreamChange::Replaced(Box::new(observer)))
        }
        Err(error) => {
            screen.refuse(filter, &error.to_string());
            screen.trouble = trouble;
            Ok(StreamChange::Kept)
        }
    }
}

/// Returns whether the screen has changed.
fn note(screen: &mut Screen, event: Event) -> bool {
    match event {
        Event::Batch(batch) => return screen.fleet_mut().add_batch(*batch, Instant::now()),
        Event::Disconnected { reason } => {
            screen.fleet_mut().take_as_whole();
            let who = if screen.fleet().is_collector() {
                "collector"
            } else {
                "agent"
            };
            screen.trouble = format!("{reason}; waiting for the {who} to come back");
        }
        Event::Reconnected(reconnected) => {
            // An agent's stream begins with a snapshot.
            let fleet = screen.fleet_mut();
            fleet.restart(reconnected == Reconnected::ToACollector);
            match reconnected {
                Reconnected::ToTheSame { missed_scans } => {
                    fleet.missing.missed_scans += missed_scans;
                }
                Reconnected::ToAnother | Reconnected::ToACollector => fleet.missing.restarts += 1,
            }
            screen.trouble.clear();
        }
        Event::Gap { batches } => screen.fleet_mut().missing.gaps += batches,
    }
    true
}
