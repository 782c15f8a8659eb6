//! The state of the screen: what the user has chosen, and how keys and the mouse change it.

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use formats::{
    columns::{Fitted, GAP},
    harmless::harmless,
};
use ratatui::layout::{Position, Rect};
use rules::{Rules, fault::Fault};
use sys::local_time::Zone;

use super::{
    Sort, View,
    fleet::Fleet,
    prompt::Prompt,
    rows::{self, Id, rows},
};

/// A request to the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Quit,
    /// Start a new stream with this filter.
    Observe(Filter),
}

/// Which flows are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// As the user typed it.
    pub typed: String,
    /// The same as rules, which every agent can read; empty for all flows.
    pub rules: String,
}

impl Filter {
    pub fn of(filter: &[Rules]) -> Self {
        Self {
            typed: rules::typed(filter),
            rules: rules::text(filter),
        }
    }
}

/// What key presses apply to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Table,
    Help,
    /// Shows the details of the chosen row.
    Detail,
    /// The user types a filter.
    Filter {
        prompt: Prompt,
        /// Why the text is not a valid set of rules.
        fault: Option<String>,
    },
}

/// Screen positions, for the mouse.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub tabs: Vec<(Rect, View)>,
    pub head: Rect,
    pub columns: Vec<Fitted>,
    pub rows: Rect,
}

pub struct Screen {
    fleet: Fleet,
    /// What is shown while paused.
    frozen: Option<Box<Fleet>>,
    pub view: View,
    /// The order of each view, and whether it is reversed.
    orders: [(Sort, bool); View::ALL.len()],
    /// Whether flows that ended are left out.
    pub hides_ended: bool,
    pub chosen: Option<Id>,
    /// The first visible row.
    pub first: usize,
    pub mode: Mode,
    pub filter: Filter,
    /// A problem with the stream. Empty if there is none.
    pub trouble: String,
    /// How often figures arrive, and why not more often.
    pub pace: String,
    pub has_color: bool,
    pub zone: Zone,
    pub places: Places,
}

impl Screen {
    /// `filter` is the one in force.
    pub fn new(fleet: Fleet, (view, sort): (View, Sort), filter: Filter, has_color: bool) -> Self {
        let mut screen = Self {
            fleet,
            frozen: None,
            view,
            orders: [(Sort::Rate, false); View::ALL.len()],
            hides_ended: false,
            chosen: None,
            first: 0,
            mode: Mode::Table,
            filter,
            trouble: String::new(),
            pace: String::new(),
            has_color,
            zone: Zone::default(),
            places: Places::default(),
        };
        screen.orders[view as usize].0 = sort;
        screen
    }

    /// The hosts shown: frozen while paused.
    pub fn fleet(&self) -> &Fleet {
        self.frozen.as_deref().unwrap_or(&self.fleet)
    }

    /// The live ones.
    pub fn fleet_mut(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    pub fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    pub fn order(&self) -> (Sort, bool) {
        self.orders[self.view as usize]
    }

    pub fn rows(&self) -> Vec<rows::Row<'_>> {
        let (sort, is_reversed) = self.order();
        let mut rows = rows(self.fleet(), self.view, sort, is_reversed);
        rows.retain(|row| !(row.is_only_an_end() || self.hides_ended && row.has_ended()));
        rows
    }

    /// The position of the chosen row.
    pub fn chosen_at(&self, rows: &[rows::Row<'_>]) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        rows.iter().position(|row| row.id(self.view) == *chosen)
    }

    /// Whether the event has no effect, as with mouse moves.
    pub fn ignores(event: &Event) -> bool {
        let Event::Mouse(mouse) = event else {
            return false;
        };
        matches!(
            mouse.kind,
            MouseEventKind::Moved | MouseEventKind::Drag(_) | MouseEventKind::Up(_)
        )
    }

    /// Whether a key quits, for times when no other key works.
    pub fn quits(event: &Event) -> bool {
        let Event::Key(key) = event else { return false };
        key.code == KeyCode::Char('q')
            || key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
    }

    pub fn event(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key),
            Event::Mouse(mouse) => {
                self.mouse(*mouse);
                Action::Nothing
            }
            Event::Paste(pasted) => {
                if let Mode::Filter { prompt, fault } = &mut self.mode {
                    prompt.paste(pasted);
                    *fault = None;
                }
                Action::Nothing
            }
            Event::Key(_) | Event::FocusGained | Event::FocusLost | Event::Resize(..) => {
                Action::Nothing
            }
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other keys do nothing")]
    fn key(&mut self, key: KeyEvent) -> Action {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        match self.mode {
            Mode::Filter { .. } => return self.key_of_filter(key),
            Mode::Table | Mode::Help | Mode::Detail if is_control => return Action::Nothing,
            Mode::Help | Mode::Detail => {
                let closes = matches!(
                    key.code,
                    KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | '?' | 'h')
                );
                if closes {
                    self.mode = Mode::Table;
                    return Action::Nothing;
                }
            }
            Mode::Table => {}
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc => self.chosen = None,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char(' ' | 'p') => self.pause(),
            KeyCode::Char('/' | 'f') => {
                self.mode = Mode::Filter {
                    prompt: Prompt::of(self.filter.typed.clone()),
                    fault: None,
                }
            }
            KeyCode::Char(digit @ '1'..='8') => {
                let number = digit as usize - '1' as usize;
                self.turn_to(View::ALL[number]);
            }
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(View::ALL.len() - 1),
            KeyCode::Char('s' | '>') => self.sort_by_next(1),
            KeyCode::Char('S' | '<') => self.sort_by_next(self.view.sorts().len() - 1),
            KeyCode::Char('r') => self.orders[self.view as usize].1 ^= true,
            KeyCode::Char('e') => self.hides_ended ^= true,
            KeyCode::Enter => self.open(),
            KeyCode::Down | KeyCode::Char('j') => self.go(|at, _| at.map_or(0, |at| at + 1)),
            KeyCode::Up | KeyCode::Char('k') => {
                self.go(|at, _| at.map_or(0, |at| at.saturating_sub(1)));
            }
            KeyCode::PageDown => self.go(|at, page| at.unwrap_or_default() + page),
            KeyCode::PageUp => self.go(|at, page| at.unwrap_or_default().saturating_sub(page)),
            KeyCode::Home | KeyCode::Char('g') => self.go(|_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.go(|_, _| usize::MAX),
            _ => {}
        }
        Action::Nothing
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the prompt has all other keys"
    )]
    fn key_of_filter(&mut self, key: KeyEvent) -> Action {
        let Mode::Filter { prompt, fault } = &mut self.mode else {
            return Action::Nothing;
        };
        match key.code {
            KeyCode::Esc => self.mode = Mode::Table,
            KeyCode::Enter => match filter_of(&prompt.text()) {
                Ok(filter) => {
                    self.mode = Mode::Table;
                    if filter.rules != self.filter.rules {
                        return Action::Observe(filter);
                    }
                    self.filter = filter;
                }
                Err(error) => *fault = Some(in_one_line(&error)),
            },
            _ => {
                prompt.key(key);
                *fault = None;
            }
        }
        Action::Nothing
    }

    /// The agent has accepted this filter, and a new stream begins.
    pub fn begin_with(&mut self, filter: Filter) {
        self.filter = filter;
        (self.frozen, self.first, self.chosen) = (None, 0, None);
        self.fleet = self.fleet.renewed();
    }

    /// The agent has refused this filter, so the old stream goes on.
    pub fn refuse(&mut self, filter: Filter, why: &str) {
        self.mode = Mode::Filter {
            prompt: Prompt::of(filter.typed),
            fault: Some(harmless(why).into_owned()),
        };
    }

    fn pause(&mut self) {
        self.frozen = match self.frozen.take() {
            Some(_) => None,
            None => Some(Box::new(self.fleet.clone())),
        };
    }

    fn turn(&mut self, by: usize) {
        self.turn_to(View::ALL[(self.view as usize + by) % View::ALL.len()]);
    }

    fn turn_to(&mut self, view: View) {
        if view != self.view {
            (self.view, self.first, self.chosen) = (view, 0, None);
        }
    }

    fn sort_by_next(&mut self, by: usize) {
        let sorts = self.view.sorts();
        let (sort, _) = self.order();
        let at = sorts.iter().position(|one| *one == sort);
        let at = at.map_or(0, |at| (at + by) % sorts.len());
        self.orders[self.view as usize] = (sorts[at], false);
    }

    /// Sorts by a column. Reverses the order if that is the column sorted by already.
    fn sort_by(&mut self, sort: Sort) {
        let (before, is_reversed) = self.order();
        self.orders[self.view as usize] = (sort, before == sort && !is_reversed);
    }

    fn open(&mut self) {
        if self.chosen.is_none() {
            self.go(|at, _| at.unwrap_or_default());
        }
        if self.chosen.is_some() {
            self.mode = Mode::Detail;
        }
    }

    /// Chooses the row that `to` returns for the position of the chosen row and the page length.
    fn go(&mut self, to: impl FnOnce(Option<usize>, usize) -> usize) {
        let page = usize::from(self.places.rows.height).max(1);
        let rows = self.rows();
        let Some(last) = rows.len().checked_sub(1) else {
            return;
        };
        let at = to(self.chosen_at(&rows), page).min(last);
        let chosen = rows[at].id(self.view);
        self.chosen = Some(chosen);
        self.show(at, page);
    }

    /// Scrolls until a row is visible.
    fn show(&mut self, at: usize, page: usize) {
        self.first = self.first.min(at).max((at + 1).saturating_sub(page));
    }

    fn mouse(&mut self, mouse: MouseEvent) {
        let at = Position::new(mouse.column, mouse.row);
        match mouse.kind {
            MouseEventKind::ScrollDown => self.scroll(3),
            MouseEventKind::ScrollUp => self.first = self.first.saturating_sub(3),
            MouseEventKind::Down(MouseButton::Left) => self.click(at),
            MouseEventKind::Down(_)
            | MouseEventKind::Up(_)
            | MouseEventKind::Drag(_)
            | MouseEventKind::Moved
            | MouseEventKind::ScrollLeft
            | MouseEventKind::ScrollRight => {}
        }
    }

    fn scroll(&mut self, by: usize) {
        let page = usize::from(self.places.rows.height);
        let last = self.rows().len().saturating_sub(page);
        self.first = (self.first + by).min(last);
    }

    fn click(&mut self, at: Position) {
        if self.mode != Mode::Table {
            if matches!(self.mode, Mode::Help | Mode::Detail) {
                self.mode = Mode::Table;
            }
            return;
        }
        let tab = self.places.tabs.iter().find(|(area, _)| area.contains(at));
        if let Some(&(_, view)) = tab {
            self.turn_to(view);
        } else if self.places.head.contains(at) {
            let sort = self.column_at(usize::from(at.x - self.places.head.x));
            if let Some(sort) = sort.and_then(|column| rows::sort_of(self.view, column)) {
                self.sort_by(sort);
            }
        } else if self.places.rows.contains(at) {
            let row = self.first + usize::from(at.y - self.places.rows.y);
            let id = self.rows().get(row).map(|row| row.id(self.view));
            let Some(id) = id else { return };
            // A second click opens it.
            if self.chosen.as_ref() == Some(&id) {
                self.mode = Mode::Detail;
            }
            self.chosen = Some(id);
        }
    }

    fn column_at(&self, x: usize) -> Option<usize> {
        let mut end = 0;
        let found = self.places.columns.iter().find(|fitted| {
            end += fitted.width + GAP.len();
            x < end
        });
        found.map(|fitted| fitted.column)
    }
}

fn filter_of(typed: &str) -> Result<Filter, Fault> {
    Ok(Filter::of(&[typed.parse()?]))
}

/// What was meant comes first, since the line may be short.
fn in_one_line(fault: &Fault) -> String {
    match fault.corrected() {
        Some(corrected) => format!("did you mean: {corrected}? {}", fault.message()),
        None => fault.message().to_owned(),
    }
}
