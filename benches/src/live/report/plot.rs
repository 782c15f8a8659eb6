//! Plots: a run comes in, SVG goes out, in colours that can be read on light and on dark ground.

use anyhow::{Result, anyhow};
use plotters::{
    chart::{ChartBuilder, SeriesLabelPosition},
    prelude::{IntoDrawingArea as _, PathElement, RGBAColor, RGBColor, Rectangle, SVGBackend},
    style::{Color as _, IntoFont as _, TextStyle},
};

use super::{Sortable, arms, lines, units};
use crate::live::result::{Figure, Run};

const SIZE_PIXELS: (u32, u32) = (860, 380);
/// Between black and white, as far from both.
const INK: RGBColor = RGBColor(128, 128, 128);
const COLOURS: [RGBColor; 6] = [
    RGBColor(140, 140, 140),
    RGBColor(56, 132, 214),
    RGBColor(224, 132, 36),
    RGBColor(52, 160, 92),
    RGBColor(198, 72, 98),
    RGBColor(144, 104, 206),
];

/// A measure over one label of the scenario, the others being fixed.
struct Plot {
    bench: &'static str,
    name: &'static str,
    measure: &'static str,
    over: &'static str,
    fixed: &'static [(&'static str, &'static str)],
}

/// A bench that comes later adds its line.
const PLOTS: &[Plot] = &[
    Plot {
        bench: "overhead",
        name: "tc-ns",
        measure: "net_ns_per_packet",
        over: "flows",
        fixed: &[("hook", "tc"), ("frame_bytes", "64"), ("path", "hit")],
    },
    Plot {
        bench: "overhead",
        name: "xdp-ns",
        measure: "net_ns_per_packet",
        over: "flows",
        fixed: &[("hook", "xdp"), ("frame_bytes", "64"), ("path", "hit")],
    },
    Plot {
        bench: "overhead",
        name: "parts-ns",
        measure: "net_ns_per_packet",
        over: "flows",
        fixed: &[("path", "parts")],
    },
    Plot {
        bench: "filters",
        name: "tc-ns",
        measure: "program_ns_per_packet",
        over: "flows",
        fixed: &[("hook", "tc")],
    },
    Plot {
        bench: "ladder",
        name: "cpu",
        measure: "agent_cpu_percent",
        over: "flows",
        fixed: &[],
    },
    Plot {
        bench: "compare",
        name: "cpu",
        measure: "cpu_percent",
        over: "flows",
        fixed: &[],
    },
    Plot {
        bench: "http",
        name: "latency",
        measure: "latency_p99_us",
        over: "offered_requests_per_second",
        fixed: &[],
    },
    Plot {
        bench: "sweep",
        name: "memory",
        measure: "resident_bytes",
        over: "flows",
        fixed: &[("section", "flows")],
    },
    Plot {
        bench: "userspace",
        name: "flow",
        measure: "cpu_ns_per_flow",
        over: "flows",
        fixed: &[("table", "kernel")],
    },
    Plot {
        bench: "sweep",
        name: "cpu",
        measure: "cpu_percent",
        over: "flows",
        fixed: &[("section", "flows")],
    },
    Plot {
        bench: "newflows",
        name: "rate-1s",
        measure: "lossless_flows_per_second",
        over: "table",
        fixed: &[("scan_interval", "1s")],
    },
    Plot {
        bench: "newflows",
        name: "rate-10s",
        measure: "lossless_flows_per_second",
        over: "table",
        fixed: &[("scan_interval", "10s")],
    },
];

/// Names and plots of a run; what was not measured has none.
pub fn all(run: &Run) -> Result<Vec<(&'static str, String)>> {
    let mut plots = Vec::new();
    for plot in PLOTS.iter().filter(|plot| plot.bench == run.bench) {
        if let Some(bars) = Bars::of(run, plot) {
            let svg = bars
                .draw()
                .map_err(|error| anyhow!("draw the plot {}: {error}", plot.name))?;
            plots.push((plot.name, svg));
        }
    }
    Ok(plots)
}

/// A group of bars for each category, one of them for each arm.
struct Bars {
    title: String,
    over: &'static str,
    categories: Vec<String>,
    arms: Vec<(String, Vec<Option<Figure>>)>,
}

impl Bars {
    fn of(run: &Run, plot: &Plot) -> Option<Self> {
        let lines = lines(run);
        let wanted: Vec<_> = lines
            .iter()
            .filter(|((measure, scenario), _)| {
                *measure == plot.measure
                    && plot
                        .fixed
                        .iter()
                        .all(|(name, value)| scenario.contains(&(*name, Sortable::new(value))))
            })
            .collect();
        if wanted.is_empty() {
            return None;
        }
        let category = |scenario: &[(&str, Sortable<'_>)]| {
            scenario
                .iter()
                .find(|(name, _)| *name == plot.over)
                .map_or_else(String::new, |(_, value)| match value {
                    Sortable::Number(number) => number.to_string(),
                    Sortable::Text(text) => (*text).to_owned(),
                })
        };
        let scaled = |figure: Figure| Figure {
            median: units::scaled(plot.measure, figure.median),
            low: units::scaled(plot.measure, figure.low),
            high: units::scaled(plot.measure, figure.high),
        };
        let by_arm = arms(run, plot.measure)
            .into_iter()
            .map(|arm| {
                let figures: Vec<Option<Figure>> = wanted
                    .iter()
                    .map(|(_, by_arm)| by_arm.get(arm)?.figure().map(scaled))
                    .collect();
                (arm.to_owned(), figures)
            })
            .filter(|(_, figures)| figures.iter().any(Option::is_some))
            .collect();
        Some(Self {
            title: units::title(plot.measure),
            over: plot.over,
            categories: wanted
                .iter()
                .map(|((_, scenario), _)| category(scenario))
                .collect(),
            arms: by_arm,
        })
    }

    fn draw(&self) -> Result<String, Box<dyn std::error::Error>> {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE_PIXELS).into_drawing_area();
            let highest = self
                .arms
                .iter()
                .flat_map(|(_, figures)| figures.iter().flatten())
                .fold(0.0, |highest: f64, figure| highest.max(figure.high));
            let ink: TextStyle<'_> = ("sans-serif", 14).into_font().color(&INK);
            let mut chart = ChartBuilder::on(&area)
                .caption(&self.title, ("sans-serif", 17).into_font().color(&INK))
                .margin(12)
                .x_label_area_size(40)
                .y_label_area_size(56)
                .build_cartesian_2d(
                    0.0..self.categories.len() as f64,
                    0.0..(highest * 1.1).max(f64::MIN_POSITIVE),
                )?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .light_line_style(RGBAColor(0, 0, 0, 0.0))
                .bold_line_style(INK.mix(0.25))
                .axis_style(INK)
                .label_style(ink.clone())
                .x_labels(2 * self.categories.len() + 1)
                .x_label_formatter(&|at| self.label(*at))
                .x_desc(self.over.replace('_', " "))
                .draw()?;
            for (index, (arm, figures)) in self.arms.iter().enumerate() {
                let colour = COLOURS[index % COLOURS.len()];
                let bars = figures.iter().enumerate().filter_map(|(category, figure)| {
                    let (left, right) = self.place(category, index);
                    Some(Rectangle::new(
                        [(left, 0.0), (right, (*figure)?.median)],
                        colour.filled(),
                    ))
                });
                chart.draw_series(bars)?.label(arm).legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
                let spreads = figures.iter().enumerate().filter_map(|(category, figure)| {
                    let (left, right) = self.place(category, index);
                    let (middle, figure) = (f64::midpoint(left, right), (*figure)?);
                    Some(PathElement::new(
                        vec![(middle, figure.low), (middle, figure.high)],
                        INK.stroke_width(2),
                    ))
                });
                chart.draw_series(spreads)?;
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .label_font(ink)
                .draw()?;
            area.present()?;
        }
        Ok(svg)
    }

    /// Left and right end of a bar.
    fn place(&self, category: usize, arm: usize) -> (f64, f64) {
        const GAP: f64 = 0.1;
        let width = (1.0 - 2.0 * GAP) / self.arms.len() as f64;
        let left = category as f64 + GAP + arm as f64 * width;
        (left, left + 0.9 * width)
    }

    /// Categories have their names in their middles.
    fn label(&self, at: f64) -> String {
        self.categories
            .iter()
            .enumerate()
            .find(|(index, _)| (at - (*index as f64 + 0.5)).abs() < 0.01)
            .map_or_else(String::new, |(_, name)| name.clone())
    }
}
