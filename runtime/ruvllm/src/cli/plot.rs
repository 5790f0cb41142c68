//! Perplexity against bits per value, drawn as SVG.

use super::Failure;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Width and height of a picture in pixels.
const SIZE: (u32, u32) = (960, 560);
/// Pixels to the left of the axes.
const LEFT: i32 = 84;
const INK: RGBColor = RGBColor(0x33, 0x3d, 0x4b);
const ACCENT: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
/// Pixels: radius of a point; height of a label; about the width of one of its characters; from a
/// point to its label; between places that are tried for a label.
const RADIUS: i32 = 5;
const LINE: i32 = 16;
const CHAR: f64 = 7.0;
const GAP: i32 = 5;
const STEP: usize = 4;

/// A measurement to be drawn.
pub(crate) struct Point<'a> {
    pub(crate) label: &'a str,
    /// Bits per value.
    pub(crate) x: f64,
    /// Perplexity.
    pub(crate) y: f64,
    /// Half the length of its error bar; 0 for none.
    pub(crate) error: f64,
}

/// Where a picture goes. The file is opened before anything is computed, and one that was not there
/// goes again if there is nothing to draw.
pub(crate) struct PlotFile {
    path: PathBuf,
    made: bool,
}

impl PlotFile {
    pub(crate) fn open(path: &Path) -> Result<PlotFile, Failure> {
        let made = !path.exists();
        File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| format!("cannot write the plot to {}: {error}", path.display()))?;
        Ok(PlotFile { path: path.to_owned(), made })
    }

    pub(crate) fn write(mut self, svg: &str) -> Result<(), Failure> {
        std::fs::write(&self.path, svg).map_err(|error| {
            format!("cannot write the plot to {}: {error}", self.path.display())
        })?;
        self.made = false;
        Ok(())
    }
}

impl Drop for PlotFile {
    fn drop(&mut self) {
        if self.made {
            // It is empty; leaving it does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The points as an SVG document. The first is the base: a dashed line marks its perplexity.
pub(crate) fn draw(title: &str, points: &[Point<'_>], caption: &str) -> Result<String, Failure> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        root.draw(&Text::new(title, (LEFT, 24), text(18.0, 1.0)))?;
        root.draw(&Text::new(caption, (LEFT, 46), text(12.0, 0.75)))?;
        let bits = around(points.iter().map(|p| (p.x, 0.0)));
        let bits = bits.start.max(0.0)..bits.end;
        let perplexity = around(points.iter().map(|p| (p.y, p.error)));
        // Enough digits to tell the lines of the grid apart.
        let digits = (1.0 - (perplexity.end - perplexity.start).log10()).ceil().max(0.0) as usize;
        let mut chart = ChartBuilder::on(&root)
            .margin_top(70)
            .margin_right(24)
            .margin_bottom(10)
            .x_label_area_size(50)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(bits.clone(), perplexity)?;
        chart
            .configure_mesh()
            .x_desc("bits per stored number, scales included")
            .y_desc("perplexity")
            .x_label_formatter(&|bits| format!("{bits}"))
            .y_label_formatter(&|perplexity| format!("{perplexity:.digits$}"))
            .x_labels(14)
            .y_labels(8)
            .bold_line_style(INK.mix(0.13))
            .light_line_style(TRANSPARENT)
            .axis_style(INK.mix(0.5))
            .label_style(text(12.0, 1.0))
            .axis_desc_style(text(13.0, 1.0))
            .draw()?;
        if let Some(base) = points.first() {
            let ends = [(bits.start, base.y), (bits.end, base.y)];
            let style = ACCENT.mix(0.6).stroke_width(1);
            chart.draw_series(DashedLineSeries::new(ends, 5, 4, style))?;
        }
        let area = chart.plotting_area();
        for point in points {
            let bar = [point.y - point.error, point.y + point.error].map(|y| (point.x, y));
            area.draw(&PathElement::new(bar, ACCENT.mix(0.45).stroke_width(2)))?;
            area.draw(&Circle::new((point.x, point.y), RADIUS, ACCENT.filled()))?;
        }
        let at: Vec<_> = points.iter().map(|p| area.map_coordinate(&(p.x, p.y))).collect();
        let labels: Vec<_> = points.iter().map(|p| p.label).collect();
        let (columns, rows) = area.get_pixel_range();
        let frame = Boxed { x: columns, y: rows };
        for ((label, &point), place) in labels.iter().zip(&at).zip(place(&labels, &at, &frame)) {
            if let Some(end) = place.end_of_leader(point) {
                root.draw(&PathElement::new([point, end], INK.mix(0.35).stroke_width(1)))?;
            }
            let middle = (place.x.start, (place.y.start + place.y.end) / 2);
            root.draw(&Text::new(*label, middle, text(12.0, 1.0)))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Letters of that height in pixels, from the left end and the middle of their line.
fn text(pixels: f64, opacity: f64) -> TextStyle<'static> {
    // The library takes the height of a line, of which letters are a part.
    let font = FontDesc::from(("sans-serif", pixels * 1.24));
    let color = INK.mix(opacity).to_backend_color();
    TextStyle { font, color, pos: Pos::new(HPos::Left, VPos::Center) }
}

/// What an axis shows: all values with their errors, and some room.
fn around(values: impl Iterator<Item = (f64, f64)>) -> Range<f64> {
    let ends = values.filter(|(value, _)| value.is_finite());
    let (low, high) = ends
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (value, error)| {
            (low.min(value - error), high.max(value + error))
        });
    if low > high {
        return 0.0..1.0;
    }
    // One value alone gets an axis, too.
    let room = (0.12 * (high - low)).max(1e-4 * high.abs()).max(1e-9);
    low - room..high + room
}

/// A rectangle in pixels.
#[derive(Clone, Debug)]
struct Boxed {
    x: Range<i32>,
    y: Range<i32>,
}

impl Boxed {
    fn overlaps(&self, other: &Boxed) -> bool {
        self.x.start < other.x.end
            && other.x.start < self.x.end
            && self.y.start < other.y.end
            && other.y.start < self.y.end
    }

    fn is_within(&self, frame: &Boxed) -> bool {
        self.x.start >= frame.x.start
            && self.x.end <= frame.x.end
            && self.y.start >= frame.y.start
            && self.y.end <= frame.y.end
    }

    /// Where a line from a point to this label ends, if the label is so far that it needs one.
    fn end_of_leader(&self, (x, y): (i32, i32)) -> Option<(i32, i32)> {
        let end = (x.clamp(self.x.start, self.x.end), y.clamp(self.y.start, self.y.end));
        let far = (end.0 - x).abs().max((end.1 - y).abs()) > LINE;
        far.then_some(end)
    }
}

/// Where labels go: next to their points, or else as near as there is room, so that none covers
/// another or a point.
fn place(labels: &[&str], points: &[(i32, i32)], frame: &Boxed) -> Vec<Boxed> {
    let disc =
        |&(x, y): &(i32, i32)| Boxed { x: x - RADIUS..x + RADIUS, y: y - RADIUS..y + RADIUS };
    let discs: Vec<_> = points.iter().map(disc).collect();
    let mut placed: Vec<Boxed> = Vec::with_capacity(labels.len());
    for (label, &(x, y)) in labels.iter().zip(points) {
        let width = (CHAR * label.chars().count() as f64) as i32;
        let sides = [x + RADIUS + GAP, x - RADIUS - GAP - width, x - width / 2];
        let candidates = (0..frame.y.end - frame.y.start).step_by(STEP).flat_map(|away| {
            [-away, away].into_iter().flat_map(move |dy| {
                sides.map(|left| Boxed {
                    x: left..left + width,
                    y: y + dy - LINE / 2..y + dy - LINE / 2 + LINE,
                })
            })
        });
        let fits = |candidate: &Boxed| {
            candidate.is_within(frame)
                && !placed.iter().chain(&discs).any(|other| candidate.overlaps(other))
        };
        let beside = Boxed { x: sides[0]..sides[0] + width, y: y - LINE / 2..y - LINE / 2 + LINE };
        let found = candidates.into_iter().find(fits).unwrap_or(beside);
        placed.push(found);
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cover_neither_each_other_nor_points() {
        let frame = Boxed { x: 0..800, y: 0..400 };
        let labels = ["f16", "k=f16:32+q4_0c,v=f16:32+q4_0,rotate", "q4_0", "mix", "q8_0"];
        let points = [(790, 200), (100, 200), (104, 203), (98, 198), (400, 395)];
        let placed = place(&labels, &points, &frame);
        for (i, label) in placed.iter().enumerate() {
            assert!(label.is_within(&frame), "{label:?}");
            assert!(!placed[..i].iter().any(|other| other.overlaps(label)), "{placed:?}");
            for (x, y) in points {
                assert!(!label.overlaps(&Boxed { x: x..x + 1, y: y..y + 1 }), "{label:?}");
            }
        }
    }

    #[test]
    fn a_picture_holds_every_label() {
        let point = |label, x, y| Point { label, x, y, error: 0.001 };
        let points = [point("f16", 16.0, 5.5), point("q8_0", 8.5, 5.501), point("k<v", 4.5, 5.6)];
        let svg = draw("A & B", &points, "what").unwrap();
        for part in ["<svg", "A &amp; B", "f16", "q8_0", "k&lt;v", "perplexity", "bits per"] {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
        for odd in [&points[..1], &[point("f16", 16.0, f64::INFINITY)], &[]] {
            assert!(draw("A", odd, "").unwrap().ends_with("</svg>\n"));
        }
    }

    #[test]
    fn a_file_that_was_not_drawn_to_is_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new.svg"), dir.path().join("old.svg"));
        std::fs::write(&old, "a picture").unwrap();
        drop((PlotFile::open(&new).unwrap(), PlotFile::open(&old).unwrap()));
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "a picture");
        PlotFile::open(&new).unwrap().write("<svg/>").unwrap();
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "<svg/>");
        assert!(PlotFile::open(dir.path()).is_err());
    }
}
