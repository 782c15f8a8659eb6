//! Draws a grid as a plot. The agent's bars have the one strong colour and the others are muted. The light background
//! is part of the plot, so it looks the same on a dark page.

use anyhow::{Result, anyhow};
use plotters::{
    chart::ChartBuilder,
    coord::Shift,
    prelude::{
        DrawingArea, IntoDrawingArea as _, PathElement, RGBAColor, RGBColor, Rectangle, SVGBackend,
        Text,
    },
    style::{
        Color as _, IntoFont as _, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::{
    experiments::{Column, Shows, Tone},
    grid::{Cell, Grid},
    units,
};
use crate::live::result::Figure;

const SIZE_PIXELS: (u32, u32) = (860, 360);
const GROUND: RGBColor = RGBColor(246, 248, 250);
const INK: RGBColor = RGBColor(36, 41, 47);
const LINES: RGBColor = RGBColor(208, 215, 222);
const INVISIBLE: RGBAColor = RGBAColor(0, 0, 0, 0.0);
/// A longer category name is split over two lines.
const LINE_LETTERS: usize = 12;

impl Tone {
    fn colour(self) -> RGBColor {
        match self {
            Self::Agent => RGBColor(9, 105, 218),
            Self::Part => RGBColor(150, 196, 245),
            Self::Quiet => RGBColor(158, 166, 175),
            Self::Pale => RGBColor(205, 211, 218),
        }
    }
}

/// A group of bars for each category, with one bar per series.
struct Bars<'a> {
    axes: (&'a str, String),
    categories: Vec<&'a str>,
    series: Vec<(&'a str, Tone, Vec<Option<Figure>>)>,
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

pub fn svg(grid: &Grid) -> Result<String> {
    let mut svg = String::new();
    Bars::of(grid)
        .draw(&mut svg)
        .map_err(|error| anyhow!("draw the plot of {}: {error}", grid.experiment.name))?;
    Ok(svg)
}

impl<'a> Bars<'a> {
    /// The rows that have the same unit as the first one.
    fn of(grid: &Grid<'a>) -> Self {
        let unit_of = |cells: &[Cell]| cells.iter().find_map(|cell| Some(scaled(cell)?.0));
        let unit = grid.rows.iter().find_map(|(_, cells)| unit_of(cells));
        let rows = || grid.rows.iter().filter(|(_, cells)| unit_of(cells) == unit);
        let columns = grid.experiment.columns.iter().enumerate();
        let series = columns.filter_map(|(index, Column(title, _, shows))| match shows {
            Shows::Bar(tone) => {
                let figures = rows().map(|(_, cells)| Some(scaled(&cells[index])?.1));
                Some((*title, *tone, figures.collect()))
            }
            Shows::Figure | Shows::RatioTo(_) | Shows::DifferenceTo(_) => None,
        });
        let (across, up) = grid.experiment.axes;
        Self {
            axes: (across, format!("{up} ({})", unit.unwrap_or_default())),
            series: series.collect(),
            categories: rows().map(|(title, _)| *title).collect(),
        }
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let area = SVGBackend::with_string(svg, SIZE_PIXELS).into_drawing_area();
        area.fill(&GROUND)?;
        let (top, below) = area.split_vertically(36);
        self.draw_legend(&top)?;
        self.draw_bars(&below)?;
        area.present()?;
        Ok(())
    }

    fn draw_legend(&self, area: &DrawingArea<SVGBackend, Shift>) -> Drawn {
        let mut left = 64;
        for (title, tone, _) in &self.series {
            let title = title.replace('`', "");
            area.draw(&Rectangle::new(
                [(left, 14), (left + 14, 28)],
                tone.colour().filled(),
            ))?;
            area.draw(&Text::new(
                title.clone(),
                (left + 20, 21),
                ink(HPos::Left, VPos::Center),
            ))?;
            left += 46 + 7 * i32::try_from(title.len())?;
        }
        Ok(())
    }

    fn draw_bars(&self, area: &DrawingArea<SVGBackend, Shift>) -> Drawn {
        let figures = self
            .series
            .iter()
            .flat_map(|(_, _, figures)| figures.iter().flatten());
        let highest = figures.fold(0.0, |highest: f64, figure| highest.max(figure.high));
        let categories = self.categories.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(62)
            .y_label_area_size(64)
            .build_cartesian_2d(
                0.0..categories,
                0.0..(highest * 1.05).max(f64::MIN_POSITIVE),
            )?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(INVISIBLE)
            .bold_line_style(LINES)
            .axis_style(INK)
            .label_style(ink(HPos::Left, VPos::Center))
            .x_labels(0)
            .y_labels(6)
            .y_label_formatter(&|value| format!("{value}"))
            .axis_desc_style(ink(HPos::Left, VPos::Center))
            .x_desc(self.axes.0)
            .y_desc(&self.axes.1)
            .draw()?;
        for (index, (_, tone, figures)) in self.series.iter().enumerate() {
            for (category, figure) in figures.iter().enumerate() {
                let Some(figure) = figure else { continue };
                let (left, right) = self.place(category, index);
                let bar = Rectangle::new(
                    [(left, 0.0), (right, figure.median)],
                    tone.colour().filled(),
                );
                let middle = f64::midpoint(left, right);
                let spread = vec![(middle, figure.low), (middle, figure.high)];
                chart.plotting_area().draw(&bar)?;
                chart
                    .plotting_area()
                    .draw(&PathElement::new(spread, INK.stroke_width(1)))?;
            }
        }
        let (origin_x, origin_y) = area.get_base_pixel();
        for (category, title) in self.categories.iter().enumerate() {
            let (x, y) = chart
                .plotting_area()
                .map_coordinate(&(category as f64 + 0.5, 0.0));
            let title = title.replace('`', "");
            for (number, words) in (0..).zip(on_two_lines(&title)) {
                let place = (x - origin_x, y - origin_y + 6 + 16 * number);
                area.draw(&Text::new(words, place, ink(HPos::Center, VPos::Top)))?;
            }
        }
        Ok(())
    }

    /// The left and right edges of a bar.
    fn place(&self, category: usize, series: usize) -> (f64, f64) {
        const GAP: f64 = 0.15;
        let width = (1.0 - 2.0 * GAP) / self.series.len() as f64;
        let left = category as f64 + GAP + series as f64 * width;
        (left, left + 0.92 * width)
    }
}

/// The unit's name, and the figure in that unit.
fn scaled(cell: &Cell) -> Option<(&'static str, Figure)> {
    let Cell::Figure(row, Figure { median, low, high }) = cell else {
        return None;
    };
    let of = |value: &f64| units::scaled(&row.measure, *value).1;
    let (unit, median) = units::scaled(&row.measure, *median);
    let (low, high) = (of(low), of(high));
    Some((unit, Figure { median, low, high }))
}

fn ink(x: HPos, y: VPos) -> TextStyle<'static> {
    ("sans-serif", 14)
        .into_font()
        .color(&INK)
        .pos(Pos::new(x, y))
}

/// Splits a long title at a comma, or at the space that gives the shortest lines.
fn on_two_lines(title: &str) -> Vec<&str> {
    let spaces = title.match_indices(' ').map(|(at, _)| at);
    let middle = spaces.min_by_key(|at| (*at).max(title.len() - at - 1));
    match title.find(", ").map(|at| at + 1).or(middle) {
        Some(at) if title.len() > LINE_LETTERS => vec![&title[..at], &title[at + 1..]],
        _ => vec![title],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{report::experiments, result::Run};

    #[test]
    fn a_long_name_is_broken_at_its_comma_or_middle() {
        assert_eq!(on_two_lines("10k"), ["10k"]);
        assert_eq!(on_two_lines("one consumer"), ["one consumer"]);
        assert_eq!(on_two_lines("four consumers"), ["four", "consumers"]);
        assert_eq!(on_two_lines("500k flows, XDP"), ["500k flows,", "XDP"]);
        assert_eq!(on_two_lines("inseparableness"), ["inseparableness"]);
    }

    #[test]
    fn one_series_of_each_plot_is_the_agent_itself() {
        for experiment in experiments::ALL {
            let columns = experiment.columns.iter();
            let ours = columns.filter(|column| matches!(column.2, Shows::Bar(Tone::Agent)));
            assert_eq!(ours.count(), 1, "{}", experiment.name);
        }
    }

    #[test]
    fn a_run_without_figures_has_an_empty_plot() {
        let run = Run::new("overhead", true, 1).unwrap();
        let grid = Grid::of(experiments::ALL[0], &run).unwrap();
        assert!(svg(&grid).unwrap().ends_with("</svg>\n"));
    }
}
